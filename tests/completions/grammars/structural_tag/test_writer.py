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
    make_alternatives,
    make_chain,
    make_free_text,
    make_literal,
    make_loop,
)
from completions.grammars.structural_tag.writer import Writer

SYMBOL = Opaque('%json {"type":"object"}', '"{"')
WORD = Terminal("/[a-z]+/", is_open=True, pointer="/word")
TEXT = make_free_text("/text", [], None)


def lark(part: Part) -> list[str]:
    return json.loads(Writer().write(part))["grammars"][0]["lark_grammar"].splitlines()


def test_regular_neighbours_fuse() -> None:
    assert make_chain([make_literal("a"), EMPTY, make_literal("b")]) == make_literal("ab")
    whole = make_chain(
        [
            make_literal("a"),
            make_alternatives([make_literal("b"), make_literal("c")]),
            make_loop(make_literal("d"), 0, None),
            WORD,
        ]
    )
    assert isinstance(whole, Terminal)
    assert lark(whole) == ["start: T0", 'T0: "a" ("b" | "c") ("d")* /[a-z]+/']


def test_what_is_not_regular_parts_them() -> None:
    whole = make_chain([make_literal("a"), SYMBOL, make_literal("b"), make_loop(SYMBOL, 2, None)])
    assert isinstance(whole, Chain)
    assert isinstance(whole.items[-1], Loop)
    assert lark(whole) == [
        'start: T1 %json {"type":"object"} T0 (%json {"type":"object"}){2,}',
        'T0: "b"',
        'T1: "a"',
    ]


def test_a_lexeme_that_could_go_on_ends_at_its_literal() -> None:
    assert lark(make_chain([WORD, make_literal("."), SYMBOL]))[0].startswith("start: T0 %json")
    start, *rules = lark(make_chain([TEXT, make_literal("."), SYMBOL]))
    assert start.startswith("start: t0 %json")
    assert rules == ["t0[lazy]: T0", 'T0: /(?s:.*)/ "."']
    assert lark(make_chain([SYMBOL, TEXT, make_literal(".")]))[0].endswith(
        "} T0"
    )  # nothing follows


def test_a_lexeme_that_swallows_what_follows_is_refused() -> None:
    assert lark(make_chain([WORD, SYMBOL]))[0].startswith("start: T0 %json")
    with pytest.raises(GrammarError, match="the end of this text is ambiguous") as caught:
        lark(make_chain([TEXT, SYMBOL]))
    assert caught.value.pointer == "/text"
    with pytest.raises(GrammarError, match="is ambiguous"):
        lark(make_loop(make_chain([SYMBOL, WORD, TEXT]), 0, None))


def test_empty_lexemes_are_options() -> None:
    whole = make_chain([make_loop(make_literal("a"), 0, 1), SYMBOL])
    assert lark(whole)[0].startswith("start: (T0)? %json")
    assert lark(EMPTY) == ['start: ""']


def test_alternatives_share_their_beginning() -> None:
    options = [
        make_chain([make_literal("<ab>"), SYMBOL]),
        make_chain([make_literal("<a>"), WORD]),
        make_literal("<"),
    ]
    factored = make_alternatives(options)
    assert isinstance(factored, Chain)
    assert factored.items[0] == make_literal("<")
    assert lark(factored)[0].startswith("start: T")
