"""Where a JSON text was cut, and the shares of a report."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.responses.choice_record import ChoiceRecord
from completions.responses.constraint_report import find_pointer, make_report

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("", None),
        ("hello {", None),
        ("{", ""),
        ('{"a', ""),
        ('{"a"', "/a"),
        ('{"a": "x, {', "/a"),
        ('{"a": 1, "b', ""),
        (' {"a": [1, {"x/y~": [true, "\\"]', "/a/1/x~1y~0/1"),
        ("[[], [1, 2], tr", "/2"),
        ('{"a": {"b": {}}, "c": nu', "/c"),
        ('{"a": 1}', ""),
        ('{"a": 1} {"b"', ""),
        (r'{"a\q": [', r"/a\q/0"),
        (r'{"\ud800": [', r"/\ud800/0"),
    ],
)
def test_the_pointer_leads_to_where_the_text_was_cut(text: str, pointer: str | None) -> None:
    assert find_pointer(text) == pointer


@given(st.lists(values, min_size=1, max_size=3), st.data())
def test_every_cut_has_a_pointer_into_the_value(value: list[object], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = find_pointer(text[: data.draw(st.integers(1, len(text)))])
    assert cut is not None
    at: object = value
    for step in cut.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list):
            at = at[int(key)] if int(key) < len(at) else None
        else:
            assert isinstance(at, dict)
            at = at[key]


def test_a_report_has_shares_of_steps_and_where_the_text_was_cut() -> None:
    record = ChoiceRecord(0, texts=['{"a": "x'], finish_reason="length")
    record.constraint = {"forced_tokens": 3, "steps": 4, "overruled": 1, "removed": 1.5}
    assert make_report(record) == {
        "forced_tokens": 3,
        "steps": 4,
        "overruled_share": 0.25,
        "removed_mass": 0.375,
        "cut_at": "/a",
    }
    record.finish_reason = "stop"
    record.constraint = {"forced_tokens": 3, "steps": 0, "overruled": 0, "removed": 0.0}
    assert make_report(record) == {
        "forced_tokens": 3,
        "steps": 0,
        "overruled_share": None,
        "removed_mass": None,
        "cut_at": None,
    }


def test_forced_tokens_are_overruled_too_where_the_model_was_asked() -> None:
    record = ChoiceRecord(0, texts=["ab"], finish_reason="stop")
    record.constraint = {
        "forced_tokens": 9, "steps": 0, "overruled": 0, "removed": 0.0, "forced_scored": 9,
        "forced_overruled": 7,
    }  # fmt: skip
    assert make_report(record)["overruled_share"] == 0.7778
    assert make_report(record)["removed_mass"] is None
    record.constraint |= {"steps": 3, "overruled": 2}  # type: ignore[typeddict-item]
    assert make_report(record)["overruled_share"] == 0.75


@pytest.mark.parametrize(
    ("ending", "closed", "at"),
    [
        (None, None, None),
        ({"is_whole": False, "closed_at": None}, False, None),
        ({"is_whole": True, "closed_at": None}, None, None),
        ({"is_whole": True, "closed_at": 7}, True, 7),
    ],
)
def test_a_report_says_whether_a_choice_was_closed(
    ending: dict[str, int | None] | None, closed: bool | None, at: int | None
) -> None:
    record = ChoiceRecord(0, texts=['{"a": 1}'], finish_reason="length", limit_ending=ending)
    assert make_report(record) == {}
    assert make_report(record, closes=True) == {"closed": closed, "closed_at": at}
    record.constraint = {"forced_tokens": 3, "steps": 4, "overruled": 1, "removed": 1.5}
    assert make_report(record, closes=True)["cut_at"] == ("" if closed is False else None)
