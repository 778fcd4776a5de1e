"""Patterns for llguidance."""

import pytest

from completions.grammars.patterns.reader import read
from completions.grammars.patterns.rust import Escapes, HasConditionError, find_left_out, write


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("^[a-z]+$", "^[a-z]+$"),
        ("a|b", "^(?s:.*)(?:a|b)(?s:.*)$"),
        ("^a|b$", "^(?:a(?s:.*)|(?s:.*)b)$"),
        ("(^a|b)c", "^(?:a|(?s:.*)b)c(?s:.*)$"),
        ("", "^(?s:.*)$"),
        ("^(?:ab){2,}c?$", "^(?:ab){2,}c?$"),
        (r"^[\d\-/]$", r"^[\-/-9]$"),
        (r"^[^\p{Greek}\x41]$", r"^[^A\p{Greek}]$"),
        # Two ranges, the negation of which regex-syntax gets wrong.
        (r"^[^a-\ud7ff\ue000-\uffff]$", r"^[^a-\u{ffff}]$"),
    ],
)
def test_written(pattern: str, written: str) -> None:
    assert write(read(pattern)) == written


@pytest.mark.parametrize("pattern", ["a^", "(^a)*b", "(?=a)", r"\b", "$a", "(?<=a)"])
def test_a_condition_is_not_written(pattern: str) -> None:
    with pytest.raises(HasConditionError):
        write(read(pattern))


@pytest.mark.parametrize(
    ("pattern", "point"),
    [
        ('^[^"]*$', 1),
        (r"[\x00-\x1f]", 1),
        (r"(?:[\x00-\x1f]|[a-z])*", 1),
        (r"[\x00-\x0f]|[\x10-\x1f]", 1),
        (r"[^\p{P}]", 1),
        (r'[^\p{Greek}"]', 1),
        (r'^\x01[^"]', 2),
        (r"[^\n\\]", 1),
        (r'[^"\r\n]', None),
        (r'[^\s"]', None),
        (".", None),
        (r"[^]", None),
        (r"[^a]", None),
    ],
)
def test_a_control_character_is_left_out_of_sets_that_llguidance_would_widen(
    pattern: str, point: int | None
) -> None:
    assert find_left_out(read(pattern)) == point


def test_no_set_holds_what_cannot_be_written() -> None:
    escapes = Escapes(numeric=False)
    assert write(read(r"^\x01a|[\x00-\x20]$"), escapes) == (
        r"^(?:[^\s\S]a(?s:.*)|(?s:.*)[\x08-\n\f-\r ])$"
    )
    assert find_left_out(read('[^"]'), frozenset({1})) == 2
