from contextlib import suppress
from typing import Any

import pytest

from completions.grammars import Constraint, translate
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import (
    EBNF,
    Limits,
    check_bytes,
    check_chains,
    check_shape,
    find_longest_chain,
    measure_shape,
)
from completions.grammars.translation import screen
from tests.representatives import stand_for_all


@pytest.mark.parametrize(
    ("text", "nesting", "repetition"),
    [
        ("abc", 0, 1),
        ("a{3}", 0, 3),
        ("a{2,30}", 0, 30),
        ("a{7,}", 0, 7),
        ("a{3}{4}", 0, 12),
        ("a{3}b{4}", 0, 4),
        ("((a{3}){4}b){5}", 2, 60),
        ("((a{3}|c)b{9}){2}", 2, 18),
        (r"\({3}", 0, 3),
        ("[({]{3}", 0, 3),
        ("(a{3})+{2}", 1, 6),
        ("a{0}", 0, 1),
        (")" * 5, 0, 1),
        ("a{99999999999999}", 0, 10**12),
        ("a" + "{999999999}" * 500, 0, 10**12),
    ],
)
def test_nesting_and_repetitions_of_a_pattern_are_counted(
    text: str, nesting: int, repetition: int
) -> None:
    found = measure_shape(text, is_regex=True)
    assert (found.nesting, found.repetition) == (nesting, repetition)


@pytest.mark.parametrize(
    ("text", "nesting", "repetition"),
    [
        ('start: "(({900}" | "x"{2}', 0, 2),
        ('start: "a"{3} // ({900}\n', 0, 3),
        ('start: "a"{3} # "{900}\n | "b"{4}', 0, 4),
        ('// \\x{\nstart: "a"{900}\n', 0, 900),
        ('# [\nstart: "a"{900} // ]\n', 0, 900),
        ('start: ["a"{900}]', 1, 900),
        ('start: ["a"{3}]{4}', 1, 12),
        ('start: /"/ "a"{900} /"/', 0, 900),
        ('start: <"> "a"{900} <">', 0, 900),
        ("start: /a\nb{9}/{3}", 0, 27),
        ("start: (/(a{9}){2}/{3})", 2, 54),
        ("start: /[({]{3}\\x{41}{2}/", 0, 3),
        ('start: "a"{,900}', 0, 900),
        ('start: ("a"~3..9)~+4', 1, 36),
        ('start: "a" { 2 , 9 }', 0, 9),
        ('start: %json {"a": [{"b": {}}]}', 1, 1),
    ],
)
def test_nesting_and_repetitions_of_lark_are_counted(
    text: str, nesting: int, repetition: int
) -> None:
    found = measure_shape(text, is_regex=False)
    assert (found.nesting, found.repetition) == (nesting, repetition)


OPENINGS = (
    "[",
    "a[",
    "\na[",
    '"',
    '["',
    '"\\',
    "/",
    "/\\",
    "\\x{",
    "\\[",
    "{",
    "{1",
    "<a",
    "a",
    "#",
    " ",
)


@pytest.mark.represented_by("[--regex", "a[--ebnf", "{--grammar")
@pytest.mark.parametrize("field", ["regex", "ebnf", "grammar"])
@pytest.mark.parametrize("ending", stand_for_all([""], ["", "\\"]))
@pytest.mark.parametrize("opening", OPENINGS)
def test_what_is_not_closed_is_scanned_once(field: str, opening: str, ending: str) -> None:
    """A scan to the end of the text from each of these would take minutes."""
    text = opening * (100_000 // len(opening)) + ending
    value = {"type": "lark", "value": text} if field == "grammar" else text
    with suppress(GrammarError):
        screen(Constraint(field, value), Limits())


def test_white_space_in_a_count_is_read_once() -> None:
    for is_regex in (True, False):
        for opening in ("{1", "{1,"):
            assert measure_shape(opening + " " * 250_000, is_regex=is_regex).repetition == 1


COUNTS = "{999999999}" * 500
"""A product of 4,500 digits, more than Python turns into text."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("regex", "a" + COUNTS),
        ("json_schema", {"type": "string", "pattern": "a" + COUNTS}),
        ("json_schema", {"type": "object", "patternProperties": {"a" + COUNTS: {}}}),
        ("grammar", {"type": "lark", "value": f'start: "a"{COUNTS}'}),
        ("ebnf", f'root ::= "a"{COUNTS}'),
    ],
)
def test_a_product_of_many_digits_is_refused_in_few_words(field: str, value: Any) -> None:
    with pytest.raises(GrammarError) as caught:
        translate(Constraint(field, value))
    assert len(str(caught.value)) < 500


def test_a_small_product_is_named() -> None:
    with pytest.raises(GrammarError, match="multiply to more than 100: 101; lower"):
        check_shape("a{101}", Limits(max_repetition=100), is_regex=True)


def test_bytes_count_not_characters() -> None:
    check_bytes("é" * 50, Limits(max_bytes=100))
    with pytest.raises(GrammarError, match="longer than 100 bytes"):
        check_bytes("é" * 51, Limits(max_bytes=100))


@pytest.mark.wide
def test_longest_chain() -> None:
    assert find_longest_chain({}) == 0
    assert find_longest_chain({"a": ["b", "b"], "b": ["c", "a"], "c": ["terminal"]}) == 3
    deep = {f"r{i}": [f"r{i + 1}"] for i in range(100_000)}
    assert find_longest_chain(deep) == 100_000


def test_chains_in_ebnf() -> None:
    ebnf = (
        'root ::= a-1 # b ::= c\na-1[max_chars=3] ::= "b ::= c" | [b-c]\n  b.2 ::= root | "[" a-1'
    )
    check_chains(ebnf, Limits(max_chain=3), EBNF)
    with pytest.raises(GrammarError, match="more than 2 rules"):
        check_chains(ebnf, Limits(max_chain=2), EBNF)


def test_chains_in_lark() -> None:
    lark = 'start: a // b\n?a: "x: y" | b\nb: /a:/ | start\nC: "c"'
    check_chains(lark, Limits(max_chain=3))
    with pytest.raises(GrammarError, match="more than 2 rules"):
        check_chains(lark, Limits(max_chain=2))
