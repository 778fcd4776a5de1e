"""The written Lark matches what the EBNF says: llguidance is asked, byte by byte."""

import tomllib
from pathlib import Path

import pytest

from completions.grammars import Constraint, ebnf, translate
from completions.grammars.compiler import DEFAULT_COMPILER
from tests.completions.grammars.byte_matcher import accepts

SAMPLES = tomllib.loads(Path(__file__).with_name("samples.toml").read_text())


@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str) -> None:
    sample = SAMPLES[name]
    lark = ebnf.translate(sample["grammar"])
    assert [text for text in sample["good"] if not accepts(lark, text)] == []
    assert [text for text in sample["bad"] if accepts(lark, text)] == []


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= root "a" | "a"', "a" * 1500, ""),
        ('root ::= "a" root | "a"', "a" * 1500, ""),
        ("root ::= [a-z]{1,200}", "a" * 200, "a" * 201),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "a", "b"),
        ("root ::= " + " | ".join(f'"w{i}"' for i in range(300)), "w299", "w300"),
        ('root ::= "(" root ")"' + "".join(f' | "w{i}"' for i in range(3000)), "(w2999)", "w3000"),
    ],
    ids=["left recursion", "right recursion", "count", "parentheses", "words", "nested words"],
)
def test_large(grammar: str, good: str, bad: str) -> None:
    lark = ebnf.translate(grammar)
    assert accepts(lark, good)
    assert not accepts(lark, bad)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= ws root "a" | "b"\nws ::= " "*', ["b", "ba", "  baa"], [" b", "b a", "a", " "]),
        ('root ::= ws root "a" | "b"\nws ::= " "?', ["b", "baa", "  baa"], [" b", "  ba", "bb"]),
        ('root ::= ws ws root "a" | "b"\nws ::= [ \\n]*', ["b", " \n ba"], ["\nb", "ab"]),
        (
            'root ::= ws x\nx ::= ws x "+" ws y | y\ny ::= "1" | "(" x ")"\nws ::= [ ]*',
            ["1", " 1+1", "( 1+ 1)+1"],
            ["1 +1", "( 1)", "1+", "+1"],
        ),
        (
            'root ::= ws root "a" | root "c" | ws root "d" | "b"\nws ::= " "*',
            ["b", "bc", " bca", " bcdc", "bd"],
            [" b", " bc", " bcc", "a"],
        ),
        (
            'root ::= "x"? root "a" | "y"? root "c" | "b"',
            ["b", "xba", "ybc", "yxbac", "bac"],
            ["xb", "xbc", "yba", "xybac"],
        ),
        (
            'root ::= a\na ::= ws b "x" | "1"\nb ::= a "y" | "2"\nws ::= "" | " "',
            ["1", "2x", " 2x", "  1yxyx"],
            ["1y", " 1", "  2x"],
        ),
    ],
    ids=["star", "option", "stars", "sums", "several", "options", "indirect"],
)
def test_left_recursion_behind_parts_that_may_be_empty(
    grammar: str, good: list[str], bad: list[str]
) -> None:
    lark = ebnf.translate(grammar)
    assert [text for text in good if not accepts(lark, text)] == []
    assert [text for text in bad if accepts(lark, text)] == []


def test_no_name_of_the_client_reaches_the_output() -> None:
    lark = ebnf.translate('root ::= secret "(" root ")" | secret\nsecret ::= "x" secret "y" | "z"')
    assert "secret" not in lark
    assert "root" not in lark


def test_look_ahead_restricts_nothing() -> None:
    lark = ebnf.translate('root ::= a "c"\na ::= "x" (= "b" | ("d"))')
    assert accepts(lark, "xc")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("a(?=b)*c", ["ac"], ["c", "aac"]),
        ("a(?!b)?c", ["ac"], ["c"]),
        ("a(?=b){2}c", ["ac"], ["aac"]),
        ("(?=b)+c", ["c"], ["bc"]),
    ],
)
def test_a_repeated_look_ahead_repeats_nothing(
    pattern: str, good: list[str], bad: list[str]
) -> None:
    lark = ebnf.translate(f'root ::= Regex("{pattern}")')
    assert [text for text in good if not accepts(lark, text)] == []
    assert [text for text in bad if accepts(lark, text)] == []


def test_what_is_put_around_the_root_is_safe_beside_it() -> None:
    grammar = ebnf.parse('root ::= [a-z]+ | "(" root ")"', DEFAULT_COMPILER)
    make = grammar.make
    grammar.start = make.make_concatenation(
        [make.make_literal("x"), grammar.start, make.make_literal("end")]
    )
    lark = ebnf.write(grammar)
    assert accepts(lark, "xendend")
    assert accepts(lark, "x(a)end")
    assert not accepts(lark, "xend")


def test_many_tags_are_written_once() -> None:
    tags = ", ".join(f'("<{number:03}>", body)' for number in range(40))
    lark = ebnf.translate(f'root ::= TagDispatch({tags})\nbody ::= "(" body ")" | "x"')
    assert accepts(lark, "so <017>(x) and <039>x")
    assert not accepts(lark, "so <017>(x) and <039>")
    assert lark.count("007") < 5


def test_look_aheads_are_reported() -> None:
    grammar = 'root ::= Regex("a(?=b)c") x\nx ::= "d" (= "e")'
    places = [
        each.message.partition(":")[0] for each in translate(Constraint("ebnf", grammar)).warnings
    ]
    assert places == ["line 2, column 11", "line 1, column 18"]


def test_look_aheads_in_a_structural_tag_are_reported() -> None:
    node = {"type": "grammar", "grammar": 'root ::= "d" (= "e")'}
    tag = {"type": "structural_tag", "format": node}
    (finding,) = translate(Constraint("structural_tag", tag)).warnings
    assert (finding.keyword, finding.pointer) == ("lookahead", "/format/grammar")
