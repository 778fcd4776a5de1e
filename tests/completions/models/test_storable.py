from completions.models.storable import replace_nul


def test_every_text_of_a_value_is_made_storable() -> None:
    value = {"a\0": ["\0b", 1, None, {"c": "d\0\0"}], "e": 1.5, "f": True}
    shown = {"a␀": ["␀b", 1, None, {"c": "d␀␀"}], "e": 1.5, "f": True}
    assert replace_nul(value) == shown
    assert replace_nul(shown) == shown
