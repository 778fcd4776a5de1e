import pytest

from completions.grammars import Constraint, regex, translate
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


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\d\w\s", ["1_ ", "1a\v"], ["\u0661a ", "1\u00e9 ", "1a\u00a0"]),
        (r"\D\W\S", ["\u0661\u00e9\u00a0"], ["1\u00e9x", "a_x", "a! "]),
        (r"[^\d\s]{2}[\Wx]", ["a\u0661\u00e9", "\u00a0bx"], ["a1!", "a!a"]),
        (r"\\d", ["\\d"], ["\\1"]),
        (r"(?u)\d\w", ["\u0661\u00e9"], ["\u00e9\u0661"[:1]]),
        (r"(?u:\d)\d(?-u:[a\d])", ["\u06611a", "1" * 3], ["1\u06611"]),
        (r"((?u)\w)\w", ["\u00e9a"], ["a\u00e9"]),
    ],
)
def test_shorthands_are_ascii_without_the_flag_u(
    pattern: str, good: list[str], bad: list[str]
) -> None:
    tag = {"type": "structural_tag", "format": {"type": "regex", "pattern": pattern}}
    for constraint in (Constraint("regex", pattern), Constraint("structural_tag", tag)):
        grammar = translate(constraint).grammar
        assert [text for text in good if not accepts(grammar, text)] == []
        assert [text for text in bad if accepts(grammar, text)] == []
