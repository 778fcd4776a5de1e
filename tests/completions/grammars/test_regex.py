import pytest

from completions.grammars import regex
from completions.grammars.exceptions import GrammarError
from tests.completions.grammars.byte_matcher import accepts


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\d{4}-\d{2}", ["2026-11"], ["2026-1", "x"]),
        (r"a/b\\", ["a/b\\"], ["a/b"]),
        ("a\nb", ["a\nb"], ["ab"]),
        ("", [""], ["a"]),
        ("(?s:.)*", ["", "a\nb"], []),
    ],
)
def test_a_pattern_accepts_its_good_texts_and_no_bad_one(
    pattern: str, good: list[str], bad: list[str]
) -> None:
    grammar = regex.translate(pattern).grammar
    assert all(accepts(grammar, sample) for sample in good)
    assert not any(accepts(grammar, sample) for sample in bad)


@pytest.mark.parametrize(
    ("pattern", "line", "column", "reason"),
    [
        ("a(", 1, 2, "this ( is not closed"),
        ("a/b\\/(", 1, 6, "this ( is not closed"),
        ("a\nb(", 2, 2, "this ( is not closed"),
        ("[z-a]", 1, 2, "range"),
        ("(?=a)b", 1, 1, "look-ahead"),
        ("ab\\", 1, 3, "backslash"),
        (r"[$]\$word\b!", 1, 10, r"word boundaries (\b, \B, \<, \>) are not"),
        ("[$]a$b", 1, 5, "$ is supported at the end of a pattern only"),
        ("a\n^b", 2, 1, "^ is supported at the beginning of a pattern only"),
    ],
)
def test_refused_with_place(pattern: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        regex.translate(pattern)
    assert reason in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)
