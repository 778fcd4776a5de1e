from workers.engine.speculation import siblings
from workers.engine.speculation.siblings import BORDER, Siblings


def test_a_family_knows_the_outputs_of_its_key_alone() -> None:
    found = Siblings()
    found.add(b"a", [9, 1, 2, 3], prompt_len=1)
    found.add(b"b", [9, 1, 5, 6], prompt_len=1)
    family = found.find(b"a")
    assert family is not None
    assert family.index.token_ids == [BORDER, 9, 1, 2, 3]
    assert found.find(b"c") is None


def test_families_used_least_recently_are_forgotten() -> None:
    found = Siblings()
    for number in range(siblings._MAX_FAMILIES):
        found.add(bytes([number]), [1, 2], prompt_len=1)
    found.find(b"\0")
    found.add(b"new", [1, 2], prompt_len=1)
    assert found.find(b"\0") is not None
    assert found.find(b"\1") is None


def test_a_family_keeps_its_last_outputs_in_bounded_memory() -> None:
    found = Siblings()
    for number in range(60):
        found.add(b"a", [number] * 400, prompt_len=1)
        family = found.find(b"a")
        assert family is not None
        assert len(family.index.token_ids) <= 2 * siblings._MAX_TOKENS
        assert family.index.find([number] * 3)
    found.add(b"a", [77] * (5 * siblings._MAX_TOKENS), prompt_len=1)
    family = found.find(b"a")
    assert family is not None
    assert len(family.index.token_ids) <= 2 * siblings._MAX_TOKENS
