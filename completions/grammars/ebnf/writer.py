"""Productions written as llguidance's Lark, under names of our own: r0, r1 ... and T0, T1 ..."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from completions.grammars.ebnf.expressions import (
    EMPTY,
    Alternation,
    Characters,
    Concatenation,
    Expression,
    FreeText,
    Literal,
    NonEmpty,
    Reference,
    Repeat,
    Substring,
    children,
    walk,
)
from completions.grammars.ebnf.patterns import ANY, loop, pattern, quoted
from completions.grammars.ebnf.productions import Loop, Productions, Rule, Symbol, resolve

MAX_PATTERN_SIZE = 4_000
"""Expressions in one regular expression; larger ones are put together from several."""
MAX_PATTERN_DEPTH = 60
"""Nested parentheses; Rust's regex parser takes some 200."""
_EMPTY_TEXT = '""'


def write(productions: Productions, rules: Mapping[str, Expression]) -> str:
    return _Writer(productions, rules).text()


class _Writer:
    def __init__(self, productions: Productions, rules: Mapping[str, Expression]) -> None:
        self._productions = productions
        self._terminals = _Terminals(rules)
        names = {node: f"r{number}" for number, node in enumerate(productions.rules)}
        self._names = names | {productions.start: "start"}

    def text(self) -> str:
        lines = ["%llguidance {}"]
        for node, alternatives in self._productions.rules.items():
            written = dict.fromkeys(map(self._alternative, alternatives))
            lines.append(f"{self._names[node]}: {' | '.join(written)}")
        return "\n".join([*lines, *self._terminals.lines, ""])

    def _alternative(self, symbols: list[Symbol]) -> str:
        return " ".join(map(self._symbol, symbols)) or _EMPTY_TEXT

    def _symbol(self, symbol: Symbol) -> str:
        if isinstance(symbol, Loop):
            return f"({self._symbol(symbol.item)}){loop(symbol.low, symbol.high)}"
        if isinstance(symbol, Rule):
            return self._names[symbol.expression]
        return self._terminals.name(symbol.expression)


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

    def name(self, lexeme: Expression) -> str:
        """The name of a lexeme, which is defined at its first use."""
        lexeme = resolve(lexeme, self._rules)
        for node in walk([lexeme], self._measures, self._parts):
            self._measures[node] = self._measure(node)
            if not self._is_small(node) and not isinstance(node, Reference):
                self._define(node)
        if lexeme not in self._names:
            self._define(lexeme)
        return self._names[lexeme]

    def _parts(self, node: Expression) -> tuple[Expression, ...]:
        return (self._rules[node.name],) if isinstance(node, Reference) else children(node)

    def _measure(self, node: Expression) -> _Measure:
        """The size and depth of the expression with its references expanded."""
        parts = [self._measures[part] for part in self._parts(node)]
        size = 1 + sum(part.size for part in parts)
        if isinstance(node, Literal):
            size = len(node.text)
        elif isinstance(node, Characters):
            size = len(node.ranges)
        elif isinstance(node, Substring | FreeText | NonEmpty):
            return _TOO_LARGE
        depth = max((part.depth for part in parts), default=0)
        nests = not isinstance(node, Reference)
        return _Measure(min(size, _TOO_LARGE.size), depth + nests)

    def _is_small(self, node: Expression) -> bool:
        size, depth = self._measures[node]
        return size <= MAX_PATTERN_SIZE and depth <= MAX_PATTERN_DEPTH

    def _define(self, node: Expression) -> None:
        name = self._names[node] = f"T{len(self._names)}"
        self.lines.append(f"{name}: {self._definition(node)}")

    def _definition(self, node: Expression) -> str:
        if self._is_small(node):
            return f"/{pattern(node, self._rules)}/"
        if isinstance(node, Concatenation):
            return " ".join(map(self._operand, node.parts))
        if isinstance(node, Alternation):
            return " | ".join(map(self._operand, node.options))
        if isinstance(node, Repeat):
            return f"({self._operand(node.body)}){loop(node.low, node.high)}"
        if isinstance(node, NonEmpty):
            return f"{self._operand(node.body)} & /{ANY}+/"
        if isinstance(node, Substring):
            return f"%regex {json.dumps({'substring_chunks': node.chunks})}"
        if isinstance(node, FreeText):
            return self._free_text(node)
        if isinstance(node, Literal):
            return json.dumps(node.text)
        raise TypeError(node)

    def _free_text(self, node: FreeText) -> str:
        """A terminal of text without the avoided strings, except that it may end with one."""
        if node.avoided not in self._avoided:
            name = self._avoided[node.avoided] = f"A{len(self._avoided)}"
            self.lines.append(f"{name}: /{'|'.join(map(quoted, node.avoided))}/")
        rest = f"/{ANY}+/" if node.end else f"/{ANY}*/"
        avoided = f"/{ANY}*/ {self._avoided[node.avoided]} {rest}"
        return f"/{ANY}*{quoted(node.end)}/ & ~({avoided})"

    def _operand(self, node: Expression) -> str:
        node = resolve(node, self._rules)
        if node is EMPTY:
            return _EMPTY_TEXT
        return self._names.get(node) or f"/{pattern(node, self._rules)}/"
