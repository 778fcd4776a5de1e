"""Marks in text that is cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.markers import MarkerFilter, Markers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab", ("ab", None, "")),
        ("a<b>c<d>", ("a", "<b>", "c<d>")),
        ("a<d><b>", ("a", "<d>", "<b>")),
        ("a<", ("a", None, "<")),
        ("a<b", ("a", None, "<b")),
        ("a<x", ("a<x", None, "")),
        ("", ("", None, "")),
    ],
)
def test_a_text_is_split_at_its_first_mark(
    text: str, expected: tuple[str, str | None, str]
) -> None:
    assert Markers(("<b>", "<d>")).split(text) == expected


MARKS = ("<b>", "<bb>", "[end]", "<b>x")


@given(
    st.lists(st.sampled_from(["<b>", "<bb>", "[end]", "<", "b", "[e", "x", ">"]), max_size=12),
    st.integers(0, 40),
)
def test_marks_are_filtered_alike_however_the_text_is_cut(scraps: list[str], place: int) -> None:
    text = "".join(scraps)
    one, two = MarkerFilter(MARKS), MarkerFilter(MARKS)
    whole = one.push(text) + one.finish()
    assert two.push(text[:place]) + two.push(text[place:]) + two.finish() == whole
    if not any(mark in text for mark in MARKS):
        assert whole == text


def test_nothing_is_held_back_without_need() -> None:
    filtered = MarkerFilter(MARKS)
    assert [filtered.push(piece) for piece in ("a<", "b", "b>c", "[x")] == ["a", "", "c", "[x"]
    assert filtered.finish() == ""
    assert MarkerFilter(()).push("<b>") == "<b>"
