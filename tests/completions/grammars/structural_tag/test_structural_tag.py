"""The language of every kind of node. XGrammar 0.2.8 gave the same answers, but where noted."""

import json
from pathlib import Path
from typing import Any

import pytest

from completions.grammars import TokenSource, structural_tag
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from tests.completions.grammars.structural_tag.nodes import (
    ANY_JSON,
    const,
    either,
    free,
    sequence,
    tag,
    triggered,
    verdicts,
    wrapped,
)

CALL = tag("<f=a>", ANY_JSON, "</f>")
ITEM = tag("<a>", ANY_JSON, "</a>")
WORDS = {"type": "regex", "pattern": "[a-z<>/]*"}


def times(kind: str, content: Any, **bounds: int) -> dict[str, Any]:
    return {"type": kind, "content": content, **bounds}


def separated(separator: str, **options: bool) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": [ITEM], "separator": separator, **options}


def dispatch(**options: Any) -> dict[str, Any]:
    rules = [["<f>", ANY_JSON], ["<g>", const("G")]]
    return {"type": "dispatch", "rules": rules, **options}


@pytest.mark.parametrize(
    ("node", "accepted", "refused"),
    [
        (const('a"\n\\<é'), ['a"\n\\<é'], ["", "a"]),
        (const("\0\x7f\u2028\ufeff"), ["\0\x7f\u2028\ufeff"], ["", "\0"]),
        (const(""), [""], ["a"]),
        (free(), ["", "a\nb", "<é>"], []),
        (free("BAD", "x"), ["BA", "BDA"], ["aBADb", "x"]),
        (free(max_chars=2), ["", "ab", "é€"], ["abc"]),
        (free(max_chars=0), [""], ["a"]),
        ({"type": "regex", "pattern": "a.b"}, ["a\nb", "axb"], ["ab"]),
        ({"type": "regex", "pattern": "^a/b$"}, ["a/b"], ["^a/b$"]),
        ({"type": "regex", "pattern": r"a\$"}, ["a$"], ["a"]),
        ({"type": "grammar", "grammar": 'root ::= "a" root "b" | "c"'}, ["c", "aacbb"], ["aacb"]),
        (ANY_JSON, ["{}", '{"a":1}'], ["[]", "{} "]),
        ({"type": "json_schema", "json_schema": True}, ["1", "[]"], ["x"]),
        (
            {"type": "json_schema", "json_schema": {}, "max_whitespace_cnt": 2},
            ["[1,  2]"],
            ["[1,   2]"],
        ),
        (
            either(const("a"), tag("b", ANY_JSON, "c"), free(max_chars=1)),
            ["a", "b{}c", "q", ""],
            ["bb", "b{}"],
        ),
        (times("optional", const("x")), ["", "x"], ["xx"]),
        (times("star", const("xy")), ["", "xyxy"], ["xyx"]),
        (times("plus", ITEM), ["<a>{}</a>", "<a>{}</a><a>{}</a>"], [""]),
        (times("repeat", const("ab"), min=2, max=3), ["abab", "ababab"], ["ab", "abababab"]),
        (times("repeat", ITEM, min=1, max=-1), ["<a>{}</a>" * 3], [""]),
        (times("repeat", ITEM, min=0, max=0), [""], ["<a>{}</a>"]),
        (
            sequence(const("a"), times("star", const("x")), times("plus", tag("(", ANY_JSON, ")"))),
            ["a({})", "axx({})({})"],
            ["a"],
        ),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else "",
)
def test_single_nodes(node: Any, accepted: list[str], refused: list[str]) -> None:
    assert verdicts(wrapped(node), accepted + refused) == accepted


@pytest.mark.parametrize(
    ("node", "accepted", "refused"),
    [
        (tag("<t>", const("x"), ""), ["<t>x"], ["<t>"]),
        (tag("", free(), "</t>"), ["x</t>"], ["x"]),
        (tag("<t>", free(), "</t>"), ["<t></t>", "<t>\n<x></t>"], ["<t>a</t></t>"]),
        (tag("<t>", free(), "aa"), ["<t>aa", "<t>xaa"], ["<t>xaaaa"]),
        (tag("<t>", free(max_chars=2), "</t>"), ["<t></t>", "<t>ab</t>"], ["<t>abc</t>"]),
        (tag("<t>", free(), ["</t>", "</u>"]), ["<t>a</t>", "<t>a</u>"], ["<t>a</u></t>"]),
        (tag("<t>", ANY_JSON, ["</t>", "</u>"]), ["<t>{}</t>", "<t>{}</u>"], ["<t>{}"]),
        (tag("<t>", sequence(free(), const("x")), "</t>"), ["<t>axbx</t>"], ["<t>a</t>x</t>"]),
        (
            sequence(tag("<t>", WORDS, "</t>"), free()),
            ["<t></t>", "<t>a</t>Q", "<t>a</t>b</t>Q", "<t>a</t>b"],
            ["<t>a"],
        ),
        (tag("<t>", {"type": "regex", "pattern": "[0-9]*"}, "</t>"), ["<t>12</t>"], ["<t>a</t>"]),
        (
            tag("<t>", {"type": "grammar", "grammar": 'root ::= [a-z]+ (" " root)?'}, "end"),
            ["<t>aend", "<t>a bend", "<t>endend"],
            ["<t>end", "<t>a end"],
        ),
        (
            sequence(
                {"type": "grammar", "grammar": 'root ::= "(" root ")" | [a-z]*'},
                const("x"),
                ANY_JSON,
            ),
            ["x{}", "xx{}", "(x)x{}"],
            ["(x){}", "{}"],
        ),
        (sequence(tag("<t>", WORDS, "</t>"), ANY_JSON), ["<t>ab</t>{}"], ["<t>ab{}"]),
        (sequence(free("<a>"), ITEM), ["x<a>{}</a>", "x<<a>{}</a>"], ["x<a>y<a>{}</a>", "x"]),
        (sequence(free(), ITEM), ["x<a>{}</a>", "<a>{}</a>"], ["x<a>y"]),
        (
            sequence(free(), either(ITEM, tag("<b>", ANY_JSON, "</b>"))),
            ["x<a>{}</a>", "<b>{}</b>"],
            ["x<b>{}</a>"],
        ),
        (
            either(
                tag("<a>", {"type": "regex", "pattern": "[a-z]+"}, "."),
                tag("<a>", ANY_JSON, "!"),
                tag("<ab>", ANY_JSON, "?"),
            ),
            ["<a>x.", "<a>{}!", "<ab>{}?"],
            ["<a>{}.", "<ab>x."],
        ),
        (
            sequence(free("<"), times("optional", ITEM), const("!")),
            ["x!", "x<a>{}</a>!"],
            ["x", "x<a>{}</a>"],
        ),
        (sequence(free("<"), times("star", ITEM)), ["x", "x<a>{}</a><a>{}</a>"], ["x<a>"]),
        (
            sequence(tag("<think>", free(), "</think>"), triggered(["<f="], CALL)),
            ["<think>a</think>b<f=a>{}</f>"],
            ["b", "<think>a"],
        ),
    ],
)
def test_text_ends_where_what_follows_begins(
    node: Any, accepted: list[str], refused: list[str]
) -> None:
    assert verdicts(wrapped(node), accepted + refused) == accepted


def test_free_text_ends_at_the_first_beginning_of_what_must_follow() -> None:
    """XGrammar would let `<a>y` be text, since a call may still come after it."""
    assert verdicts(wrapped(sequence(free(), ITEM)), ["x<a>y<a>{}</a>"]) == []


@pytest.mark.parametrize(
    ("node", "accepted", "refused"),
    [
        (
            triggered(["<f="], CALL, tag("<f=b>", const("B"), "</f>")),
            ["", "hi", "hi<f=a>{}</f>yo", "<f=b>B</f><f=a>{}</f>", "hi<f", "<f=a>{}</f><f"],
            ["<f=c>", "<f=b>B</f"],
        ),
        (triggered(["<f="], tag("<f=b>", const("B"), "</f>")), ["a<f=b>B</f>c"], ["a<f=b>C</f>"]),
        (
            triggered(["<f="], CALL, at_least_one=True),
            ["<f=a>{}</f>", "<f=a>{}</f>x<f=a>{}</f>y"],
            ["", "x<f=a>{}</f>"],
        ),
        (
            triggered(["<f="], CALL, stop_after_first=True),
            ["", "q", "<f=a>{}</f>", "x<f=a>{}</f>"],
            ["<f=a>{}</f>x"],
        ),
        (
            triggered(["<f="], CALL, stop_after_first=True, at_least_one=True),
            ["<f=a>{}</f>"],
            ["", "q", "x<f=a>{}</f>", "<f=a>{}</f>x"],
        ),
        (
            tag("<r>", triggered(["<f="], CALL), ["</r>", "</s>"]),
            ["<r></r>", "<r>x</s>", "<r>x<f=a>{}</f>y</r>"],
            ["<r>x</r>y</r>"],
        ),
        (
            triggered(["<f="], CALL, excludes=["BAD"]),
            ["xBA", "BA<f=a>{}</f>", '<f=a>{"BAD":1}</f>'],
            ["xBAD"],
        ),
        (
            triggered(["<f", "<g"], tag("<f>", ANY_JSON, "."), tag("<g>", const("1"), ".")),
            ["<g>1.<f>{}."],
            ["<g>{}."],
        ),
        (separated(","), ["", "<a>{}</a>", "<a>{}</a>,<a>{}</a>"], ["<a>{}</a>,"]),
        (separated("", at_least_one=True), ["<a>{}</a><a>{}</a>"], [""]),
        (
            separated(",", at_least_one=True, stop_after_first=True),
            ["<a>{}</a>"],
            ["", "<a>{}</a>,<a>{}</a>"],
        ),
        (dispatch(), ["", "a<f>{}b<g>Gc", "<g>G<g>G"], ["a<f>x"]),
        (dispatch(loop=False, excludes=["Z"]), ["", "a<f>{}", "<g>G"], ["a<f>{}b", "Z", "aZ<g>G"]),
    ],
)
def test_tags_in_text(node: Any, accepted: list[str], refused: list[str]) -> None:
    assert verdicts(wrapped(node), accepted + refused) == accepted


@pytest.mark.parametrize("as_text", [False, True])
def test_the_older_form(as_text: bool) -> None:
    value = {
        "type": "structural_tag",
        "structures": [
            {"begin": "<f=a>", "schema": {"type": "null"}, "end": "</f>"},
            {"begin": "<f=b>", "schema": None, "end": "</f>"},
            {"begin": "<f=c>", "schema": '{"type": "boolean"}', "end": "</f>"},
        ],
        "triggers": ["<f="],
    }
    given = json.dumps(value) if as_text else value
    accepted = ["", "x<f=a>null</f>y<f=b>[1]</f>", "<f=c>true</f>"]
    assert verdicts(given, [*accepted, "<f=a>1</f>", "<f=d>"]) == accepted
    assert verdicts({**value, "at_least_one": True}, accepted) == ["<f=c>true</f>"]


def test_text_before_alternatives_does_not_explode() -> None:
    either_call = either(ITEM, tag("<b>", ANY_JSON, "</b>"))
    many = sequence(*[free("!"), times("optional", either_call)] * 12)
    with pytest.raises(GrammarError, match="too many alternatives after free text"):
        structural_tag.translate(wrapped(many))
    few = sequence(*[free("!"), either_call] * 6)
    assert structural_tag.translate(wrapped(few))


@pytest.fixture
def compiler(tiny_model: Path) -> Compiler:
    """Ids 0-255 are bytes, 256 is <s>, 257 is </s> and ends the text, 258 and 259 are no tokens."""
    return Compiler(TokenSource(str(tiny_model / "tokenizer.json"), 260, (257,)))


def token(token: int | str) -> dict[str, Any]:
    return {"type": "token", "token": token}


@pytest.mark.parametrize(
    ("node", "accepted", "refused"),
    [
        (sequence(const("a"), token("<s>"), const("b")), ["a<s>b"], ["ab"]),
        (tag(token(256), ANY_JSON, token("<s>")), ["<s>{}<s>"], ["{}"]),
        (const("<s>"), ["<s>"], []),
        (
            sequence({"type": "any_tokens", "exclude_tokens": ["<s>"]}, token("<s>")),
            ["<s>", "ab<s>"],
            ["ab"],
        ),
        (
            sequence({"type": "any_tokens", "exclude_tokens": [256], "max_tokens": 2}, token(256)),
            ["<s>", "ab<s>"],
            ["abc<s>"],
        ),
        ({"type": "exclude_token", "exclude_tokens": ["a"]}, ["b", "<s>"], ["a", "", "bb"]),
        (
            {
                "type": "token_triggered_tags",
                "trigger_tokens": ["<s>"],
                "tags": [tag(token("<s>"), ANY_JSON, "!")],
            },
            ["", "ab", "a<s>{}!b"],
            ["a<s>b"],
        ),
        (
            {"type": "token_dispatch", "rules": [["<s>", ANY_JSON]], "loop": False},
            ["ab", "a<s>{}"],
            ["a<s>{}b"],
        ),
    ],
)
def test_tokens(node: Any, accepted: list[str], refused: list[str], compiler: Compiler) -> None:
    assert verdicts(wrapped(node), accepted + refused, compiler) == accepted


def test_neither_padding_nor_an_end_is_any_token(compiler: Compiler) -> None:
    grammar = structural_tag.translate(wrapped({"type": "any_tokens"}), compiler).grammar
    assert "<[0-256]>" in grammar


@pytest.mark.parametrize(("named", "reason"), [("<t>", "no token <t>"), (259, "no token 259")])
def test_unknown_tokens(named: int | str, reason: str, compiler: Compiler) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        structural_tag.translate(wrapped(sequence(const("a"), token(named))), compiler)
    assert caught.value.pointer == "/format/elements/1"


def test_repetitions_of_text_multiply() -> None:
    """llguidance has a state for each repetition, and computes the first mask for ever."""
    twice = times("repeat", times("repeat", const("ab"), min=2, max=1000), min=2, max=1000)
    with pytest.raises(GrammarError, match="multiply to more than 100000: 1000000; lower") as found:
        structural_tag.translate({"format": sequence(const("a"), twice)})
    assert found.value.pointer == "/format/elements/1"
