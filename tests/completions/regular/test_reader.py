"""What the dialects share, and where each differs."""

import pytest

from completions.contract.stop_regex import syntax as stop_regex
from completions.grammars.ebnf import regular_expressions
from completions.grammars.ebnf.expressions import Expressions
from completions.grammars.exceptions import GrammarError
from completions.grammars.patterns.reader import PatternSyntaxError, read
from completions.regular.syntax import Node


def read_in_grammar(pattern: str) -> None:
    source = regular_expressions.Pattern(pattern, pattern, range(len(pattern)))
    regular_expressions.parse(source, Expressions(), "s", json_string=False)


def list_readers(pattern: str) -> str:
    """Return the first letters of the dialects that take a pattern: ECMA-262, Regex of EBNF, stop
    regexes."""
    taken = ""
    for name, parse, error in (
        ("e", read, PatternSyntaxError),
        ("r", read_in_grammar, GrammarError),
        ("s", stop_regex.parse, stop_regex.RegexError),
    ):
        try:
            parse(pattern)
        except error:
            continue
        taken += name
    return taken


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("(?:a|b{2,3}?)+c", "ers"),
        ("[a-z_]", "ers"),
        ("(a", ""),
        ("a)", ""),
        ("[a", ""),
        ("[z-a]", ""),
        ("a{3,2}", ""),
        ("*a", ""),
        ("a|+", ""),
        ("\\", ""),
        (r"\q", ""),
        (r"\u{110000}", ""),
        ("a**", "r"),
        ("a{,2}", "s"),
        ("[]", "e"),
        ("[]a]", "es"),
        (r"[\d-z]", "rs"),
        (r"\bx", "e"),
        (r"(?=a)b", "er"),
        (r"\p{Lu}", "er"),
        (r"\p{Greek}", "e"),
        ("a(?i)b", "es"),
        ("a^b", "es"),
        (r"\cA", "er"),
    ],
)
def test_dialects_agree_but_where_they_mean_to_differ(pattern: str, taken: str) -> None:
    assert list_readers(pattern) == taken


def test_a_code_point_of_many_digits_is_not_cut() -> None:
    with pytest.raises(PatternSyntaxError, match="not a code point"):
        read(r"\u{1000000000000041}")
    node: Node = read(r"\u{0000000000000041}")
    assert node == read("A")
