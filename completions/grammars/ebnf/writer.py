"""Writes productions in llguidance's Lark, under generated names: r0, r1 ... and T0, T1 ..."""

import json
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from completions.grammars import tokens
from completions.grammars.ebnf.expressions import (
    EMPTY,
    Alternation,
    Characters,
    Concatenation,
    EndingEarly,
    Expression,
    FreeText,
    Literal,
    NonEmpty,
    Reference,
    Repeat,
    Substring,
    Tokens,
    get_children,
    walk,
)
from completions.grammars.ebnf.productions import Loop, Productions, Rule, Symbol, resolve
from completions.grammars.tokens import IdRanges
from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.writer import write_repetition

_ANY = "(?s:.)"
"""The pattern of any character, newline included."""
MAX_PATTERN_SIZE = 4_000
"""Expressions in one regular expression; larger ones are assembled from several."""
MAX_PATTERN_DEPTH = 60
"""Nested parentheses; Rust's regex parser accepts about 200."""
_EMPTY_TEXT = '""'


def write(productions: Productions, rules: Mapping[str, Expression]) -> str:
    return _Writer(productions, rules).write()


class _Writer:
    def __init__(self, productions: Productions, rules: Mapping[str, Expression]) -> None:
        self._productions = productions
        self._terminals = _Terminals(rules)
        self._token_sets: dict[IdRanges, str] = {}
        self._disjoint = tokens.split_disjoint(_iter_token_ids(productions))
        names = {node: f"r{number}" for number, node in enumerate(productions.rules)}
        self._names = names | {productions.start: "start"}

    def write(self) -> str:
        lines = ["%llguidance {}"]
        for node, alternatives in self._productions.rules.items():
            rule_lines = dict.fromkeys(map(self._write_alternative, alternatives))
            lines.append(f"{self._names[node]}: {' | '.join(rule_lines)}")
        sets = [f"{name}: {tokens.write_ids(ids)}" for ids, name in self._token_sets.items()]
        return "\n".join([*lines, *sets, *self._terminals.lines, ""])

    def _write_alternative(self, symbols: list[Symbol]) -> str:
        return " ".join(map(self._write_symbol, symbols)) or _EMPTY_TEXT

    def _write_symbol(self, symbol: Symbol) -> str:
        if isinstance(symbol, Loop):
            return f"({self._write_symbol(symbol.item)}){write_repetition(symbol.low, symbol.high)}"
        if isinstance(symbol, Rule):
            return self._names[symbol.expression]
        if isinstance(symbol.expression, Tokens):
            return self._write_token(symbol.expression)
        return self._terminals.define(symbol.expression)

    def _write_token(self, node: Tokens) -> str:
        """Return one of some tokens, as alternatives among sets that do not overlap."""
        sets = self._token_sets
        names = [sets.setdefault(each, f"s{len(sets)}") for each in self._disjoint[node.ids]]
        return names[0] if len(names) == 1 else f"({' | '.join(names)})"


def _iter_token_ids(productions: Productions) -> Iterator[IdRanges]:
    for symbol in productions.iter_symbols():
        item = symbol.item if isinstance(symbol, Loop) else symbol
        if isinstance(item.expression, Tokens):
            yield item.expression.ids


class _Measure(NamedTuple):
    size: int
    depth: int


_TOO_LARGE = _Measure(MAX_PATTERN_SIZE + 1, 0)


class _Terminals:
    """The definitions of lexemes. A small lexeme is one regular expression."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = rules
        self._measures: dict[Expression, _Measure] = {}
        self._names: dict[Expression, str] = {}
        self._avoided: dict[tuple[str, ...], str] = {}
        self.lines: list[str] = []

    def define(self, lexeme: Expression) -> str:
        """Return the name of a lexeme, which is defined at its first use."""
        lexeme = resolve(lexeme, self._rules)
        for node in walk([lexeme], self._measures, self._get_parts):
            self._measures[node] = self._measure(node)
            if not self._is_small(node) and not isinstance(node, Reference):
                self._define_node(node)
        if lexeme not in self._names:
            self._define_node(lexeme)
        return self._names[lexeme]

    def _get_parts(self, node: Expression) -> tuple[Expression, ...]:
        return (self._rules[node.name],) if isinstance(node, Reference) else get_children(node)

    def _measure(self, node: Expression) -> _Measure:
        """Return the size and depth of the expression with its references expanded."""
        parts = [self._measures[part] for part in self._get_parts(node)]
        size = 1 + sum(part.size for part in parts)
        if isinstance(node, Literal):
            size = len(node.text)
        elif isinstance(node, Characters):
            size = len(node.ranges)
        elif isinstance(node, Substring | FreeText | NonEmpty | EndingEarly):
            return _TOO_LARGE
        depth = max((part.depth for part in parts), default=0)
        nests = not isinstance(node, Reference)
        return _Measure(min(size, _TOO_LARGE.size), depth + nests)

    def _is_small(self, node: Expression) -> bool:
        size, depth = self._measures[node]
        return size <= MAX_PATTERN_SIZE and depth <= MAX_PATTERN_DEPTH

    def _define_node(self, node: Expression) -> None:
        name = self._names[node] = f"T{len(self._names)}"
        self.lines.append(f"{name}: {self._write_definition(node)}")

    def _write_definition(self, node: Expression) -> str:
        if self._is_small(node):
            return f"/{_write_pattern(node, self._rules)}/"
        if isinstance(node, Concatenation):
            return " ".join(map(self._write_operand, node.parts))
        if isinstance(node, Alternation):
            return " | ".join(map(self._write_operand, node.options))
        if isinstance(node, Repeat):
            return f"({self._write_operand(node.body)}){write_repetition(node.low, node.high)}"
        if isinstance(node, NonEmpty):
            return f"{self._write_operand(node.body)} & /{_ANY}+/"
        if isinstance(node, EndingEarly):
            body = self._write_operand(node.body)
            whole = f"({body} & /{_ANY}{{{node.min_tokens},}}/)" if node.min_tokens else body
            return f"{body} & ~({whole} /{_ANY}+/)"
        if isinstance(node, Substring):
            return f"%regex {json.dumps({'substring_chunks': node.chunks})}"
        if isinstance(node, FreeText):
            return self._write_free_text(node)
        if isinstance(node, Literal):
            return json.dumps(node.text)
        raise TypeError(node)

    def _write_free_text(self, node: FreeText) -> str:
        """Return a terminal of text without the avoided strings, except that it may end with
        one."""
        if node.avoided not in self._avoided:
            name = self._avoided[node.avoided] = f"A{len(self._avoided)}"
            self.lines.append(f"{name}: /{'|'.join(map(_quote, node.avoided))}/")
        rest = f"/{_ANY}+/" if node.end else f"/{_ANY}*/"
        avoided = f"/{_ANY}*/ {self._avoided[node.avoided]} {rest}"
        return f"/{_ANY}*{_quote(node.end)}/ & ~({avoided})"

    def _write_operand(self, node: Expression) -> str:
        node = resolve(node, self._rules)
        if node is EMPTY:
            return _EMPTY_TEXT
        return self._names.get(node) or f"/{_write_pattern(node, self._rules)}/"


class _Binding(IntEnum):
    """The operator whose operand a pattern is."""

    ALTERNATION = 0
    CONCATENATION = 1
    ATOM = 2


_Piece = tuple[Expression, _Binding] | str


def _write_pattern(node: Expression, rules: Mapping[str, Expression]) -> str:
    """Return the pattern of an expression, with its references expanded."""
    texts: list[str] = []
    todo: list[_Piece] = [(node, _Binding.ALTERNATION)]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            texts.append(each)
        else:
            todo += reversed(_make_pieces(*each, rules))
    return "".join(texts)


def _make_pieces(
    node: Expression, binding: _Binding, rules: Mapping[str, Expression]
) -> list[_Piece]:
    """Return the first level of a pattern: text, and expressions still to be written."""
    pieces: list[_Piece]
    match node:
        case Reference(name):
            return [(rules[name], binding)]
        case Characters(ranges):
            return [_write_class(ranges)]
        case Literal(text):
            pieces = [_quote(text)]
            is_bare = binding < _Binding.ATOM or len(text) == 1
        case Repeat(body, low, high):
            pieces = [(body, _Binding.ATOM), write_repetition(low, high)]
            is_bare = binding < _Binding.ATOM
        case Concatenation(parts):
            pieces = [(part, _Binding.CONCATENATION) for part in parts]
            is_bare = binding < _Binding.ATOM and node is not EMPTY
        case Alternation(options):
            operands = [(option, _Binding.CONCATENATION) for option in options]
            pieces = [each for operand in operands for each in ("|", operand)][1:]
            is_bare = binding < _Binding.CONCATENATION
        case _:
            raise TypeError(node)
    return pieces if is_bare else ["(?:", *pieces, ")"]


def _quote(text: str) -> str:
    """Return the pattern that matches exactly this text."""
    return "".join(
        each if each.isascii() and (each.isalnum() or each == " ") else _escape(ord(each))
        for each in text
    )


def _write_class(ranges: Ranges) -> str:
    if ranges == code_points.ALL:
        return _ANY
    items = (
        _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in ranges
    )
    return f"[{''.join(items)}]"


def _escape(code_point: int) -> str:
    return f"\\x{{{code_point:X}}}"
