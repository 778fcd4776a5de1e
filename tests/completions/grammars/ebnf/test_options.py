"""Options of rules against their definition, over all short texts."""

import itertools
import re

import pytest

from completions.grammars import ebnf
from completions.grammars.exceptions import GrammarError
from tests.completions.grammars.byte_matcher import accepts
from tests.representatives import stand_for_all

TEXTS = ["".join(each) for length in range(5) for each in itertools.product("abz", repeat=length)]


def ends_early(pattern: str, least: int, text: str) -> bool:
    """Whether a text matches, and nothing of at least `least` characters before its end does."""
    ends = (end for end in range(least, len(text)) if re.fullmatch(pattern, text[:end]))
    return re.fullmatch(pattern, text) is not None and not any(True for _ in ends)


@pytest.mark.represented_by("[ab]-[ab]*-[ab]*-lazy-0", '[ab]-"a"+ "b"?-a+b?-max_chars=1-1')
@pytest.mark.parametrize(
    ("option", "least"), [("lazy", 0), ("max_chars=1", 1), ("max_chars = 3", 3)]
)
@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ("[ab]*", "[ab]*"),
        ('"a"+ "b"?', "a+b?"),
        ('("ab" | "ba")*', "(ab|ba)*"),
        ('"aab" | "b"* | "abba"', "aab|b*|abba"),
        ('"ab" r | "a"', "(ab)*a"),
        ('r "ab" | ""', "(ab)*"),
    ],
)
@pytest.mark.parametrize("after", stand_for_all(["[ab]"], ["", "[ab]"]))
def test_budget(option: str, least: int, body: str, pattern: str, after: str) -> None:
    lark = ebnf.translate(f"root ::= r {after}\nr[{option}] ::= {body}")
    for text in TEXTS:
        expected = any(
            ends_early(pattern, least, text[:end]) and re.fullmatch(after, text[end:])
            for end in range(len(text) + 1)
        )
        assert accepts(lark, text) == expected, text


def test_budgets_nest() -> None:
    lark = ebnf.translate('root ::= a "z"\na[max_chars=3] ::= b b\nb[max_chars=2] ::= [ab]*')
    assert accepts(lark, "abaz")
    assert not accepts(lark, "ababz")


def test_the_smaller_of_two_budgets_holds() -> None:
    lark = ebnf.translate('root[max_chars=3, lazy] ::= "a"+')
    assert accepts(lark, "a")
    assert not accepts(lark, "aa")


def test_in_a_recursive_grammar() -> None:
    lark = ebnf.translate('root ::= "(" root ")" | r "z"\nr[lazy] ::= [ab]* "a"')
    assert accepts(lark, "((baz))")
    assert not accepts(lark, "(baaz)")


@pytest.mark.parametrize("option", ["lazy", "max_chars=3"])
def test_what_follows_a_rule_that_may_be_empty_is_kept(option: str) -> None:
    """The letters before the rule must not take those after it."""
    lark = ebnf.translate(f'root ::= r a r\nr ::= [a-z]+ | "(" r ")"\na[{option}] ::= ("12")*')
    for text in ("ab", "abc", "(a)b", "a(b)"):
        assert accepts(lark, text), text
    assert accepts(lark, "a12b") == (option != "lazy")
    assert not accepts(lark, "a")


def test_an_end_that_llguidance_would_miss_is_refused() -> None:
    with pytest.raises(GrammarError, match="the end of a rule with max_chars or lazy is unclear"):
        ebnf.translate('root ::= r x\nr[lazy] ::= [ab]* "a"\nx ::= "a" x "b" | "b"')
