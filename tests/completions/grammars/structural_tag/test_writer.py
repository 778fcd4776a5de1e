"""Where lexemes end."""

import json

import pytest

from completions.grammars.exceptions import GrammarError
from completions.grammars.structural_tag.parts import (
    EMPTY,
    Chain,
    Loop,
    Opaque,
    Part,
    Terminal,
    alternatives,
    chain,
    free_text,
    literal,
    loop,
)
from completions.grammars.structural_tag.writer import Writer

SYMBOL = Opaque('%json {"type":"object"}', '"{"')
WORD = Terminal("/[a-z]+/", is_open=True, pointer="/word")
TEXT = free_text("/text", [], None)


def lark(part: Part) -> list[str]:
    return json.loads(Writer().write(part))["grammars"][0]["lark_grammar"].splitlines()


def test_regular_neighbours_fuse() -> None:
    assert chain([literal("a"), EMPTY, literal("b")]) == literal("ab")
    whole = chain(
        [
            literal("a"),
            alternatives([literal("b"), literal("c")]),
            loop(literal("d"), 0, None),
            WORD,
        ]
    )
    assert isinstance(whole, Terminal)
    assert lark(whole) == ["start: T0", 'T0: "a" ("b" | "c") ("d")* /[a-z]+/']


def test_what_is_not_regular_parts_them() -> None:
    whole = chain([literal("a"), SYMBOL, literal("b"), loop(SYMBOL, 2, None)])
    assert isinstance(whole, Chain)
    assert isinstance(whole.items[-1], Loop)
    assert lark(whole) == [
        'start: T1 %json {"type":"object"} T0 (%json {"type":"object"}){2,}', 'T0: "b"', 'T1: "a"',
    ]  # fmt: skip


def test_a_lexeme_that_could_go_on_ends_at_its_literal() -> None:
    assert lark(chain([WORD, literal("."), SYMBOL]))[0].startswith("start: T0 %json")
    start, *rules = lark(chain([TEXT, literal("."), SYMBOL]))
    assert start.startswith("start: t0 %json")
    assert rules == ["t0[lazy]: T0", 'T0: /(?s:.*)/ "."']
    assert lark(chain([SYMBOL, TEXT, literal(".")]))[0].endswith("} T0")  # nothing follows


def test_a_lexeme_that_swallows_what_follows_is_refused() -> None:
    assert lark(chain([WORD, SYMBOL]))[0].startswith("start: T0 %json")
    with pytest.raises(GrammarError, match="the end of this text is ambiguous") as caught:
        lark(chain([TEXT, SYMBOL]))
    assert caught.value.pointer == "/text"
    with pytest.raises(GrammarError, match="is ambiguous"):
        lark(loop(chain([SYMBOL, WORD, TEXT]), 0, None))


def test_empty_lexemes_are_options() -> None:
    whole = chain([loop(literal("a"), 0, 1), SYMBOL])
    assert lark(whole)[0].startswith("start: (T0)? %json")
    assert lark(EMPTY) == ['start: ""']


def test_alternatives_share_their_beginning() -> None:
    options = [chain([literal("<ab>"), SYMBOL]), chain([literal("<a>"), WORD]), literal("<")]
    factored = alternatives(options)
    assert isinstance(factored, Chain)
    assert factored.items[0] == literal("<")
    assert lark(factored)[0].startswith("start: T")
