import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from completions.contract.stop_regex.syntax import LINE_START, RegexError, make_predicate, parse
from completions.regular.syntax import Alternation, Characters, Concatenation, Edge, Repeat

SINGLE = [
    ".",
    "(?s).",
    "a",
    r"\.",
    r"\n",
    r"\x41",
    r"\u00e9",
    r"\x{1F600}",
    r"\U0001f600",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    "[abc]",
    "[a-f0-9]",
    "[^a-z]",
    "[]a]",
    "[^]a]",
    "[a-]",
    r"[\d_-]",
    r"[\]\\]",
    r"[^\w\s]",
    "(?i)a",
    "(?i)[a-c]",
    "(?i)[^A-C]",
    "(?i)é",
    "(?i:É)",
    "{",
    "{a}",
    "]",
    r"\-",
    r"[\x41-\x43]",
]


@pytest.mark.parametrize("pattern", SINGLE)
def test_sets_of_characters_are_those_of_re(pattern: str) -> None:
    node = parse(pattern)
    if pattern == "{a}":
        assert isinstance(node, Concatenation)
        return
    assert isinstance(node, Characters)
    python = pattern.replace(r"\x{1F600}", "\U0001f600")
    for char in map(chr, [*range(0x250), 0x660, 0x3042, 0x1F600]):
        assert make_predicate(node)(char) == bool(re.fullmatch(python, char)), char


def test_patterns_become_the_trees_of_their_parts() -> None:
    assert parse("^") is Edge.BEGINNING
    assert parse("(?m)^") == Alternation((Edge.BEGINNING, LINE_START))
    assert parse(r"\A") is Edge.BEGINNING
    assert isinstance(parse("a|b"), Alternation)
    for quantifier, bounds in {
        "*": (0, None),
        "+?": (1, None),
        "?": (0, 1),
        "{3}": (3, 3),
        "{2,}": (2, None),
        "{2,5}?": (2, 5),
    }.items():
        node = parse(f"(?:ab){quantifier}")
        assert isinstance(node, Repeat)
        assert (node.low, node.high) == bounds


@pytest.mark.parametrize("group", ["(?i:a)b", "(a)b", "(?:(?i)a)b", "(?i)(?-i)ab", "(?<n>a)b"])
def test_flags_end_with_their_group(group: str) -> None:
    node = parse(group)
    assert isinstance(node, Concatenation)
    last = node.parts[-1]
    assert isinstance(last, Characters)
    assert not make_predicate(last)("B")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "not closed"),
        ("a)", "has no matching"),
        ("[a", "not closed"),
        ("*a", "nothing to repeat"),
        ("^+", "nothing to repeat"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("a{3,2}", "minimum"),
        ("a{1001}", "more than"),
        ("a$b", "end of the text so far"),
        ("(a$)?b", "end of the text so far"),
        ("(a$){2}", "end of the text so far"),
        ("$*", "nothing to repeat"),
        (r"\bword", "boundaries"),
        (r"(a)\1", "back-references"),
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        ("(?>a)", "this kind of group"),
        (r"\p{L}", "properties"),
        (r"\q", "unknown escape"),
        ("\\", "backslash"),
        (r"\xZZ", "character code"),
        (r"\x{110000}", "character code"),
        ("[z-a]", "range"),
        (r"[a-\d]", "range"),
        ("[[:alpha:]]", "named classes"),
        ("[a&&b]", "set operations"),
        ("(?P<1>a)", "group name"),
        ("(?i", "not closed"),
        (r"\x{1", "bad character code"),
        (r"\x1", "bad character code"),
        (r"\u+123", "bad character code"),
        (r"\x{110000}", "bad character code"),
        ("(" * 200 + ")" * 200, "nested groups"),
    ],
)
def test_what_is_refused_says_why(pattern: str, reason: str) -> None:
    with pytest.raises(RegexError, match=reason):
        parse(pattern)


@given(st.text("ab()[]{}|*+?^$.,-\\1dxiPs:<>=!& ", max_size=14))
@example("[[]")
@example("\\x{1")
@example("\\x{1}")
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        parse(pattern)
    except RegexError:
        return
    re.compile(re.sub(r"\\x\{1+\}", "c", pattern))  # braces are not Python's
