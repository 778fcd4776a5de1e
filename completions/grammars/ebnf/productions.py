"""The productions of a grammar over lexemes: regular expressions that the lexer matches as a whole.

A regular expression becomes one lexeme; so do adjacent ones in a concatenation. An expression that
must not be a lexeme, for the reasons in `lexemes.py`, is split by one level.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from completions.grammars.ebnf import free_text
from completions.grammars.ebnf.expressions import (
    EMPTY,
    Alternation,
    Concatenation,
    EndingEarly,
    Expression,
    Expressions,
    FreeText,
    Literal,
    Reference,
    Repeat,
    Substring,
    Tokens,
)
from completions.grammars.ebnf.rules import Facts
from completions.grammars.exceptions import GrammarError

_UNCLEAR_END = (
    "the end of a rule with max_chars or lazy is unclear: after the rule, require text that cannot "
    "belong to it"
)


class Lexeme(NamedTuple):
    """A regular expression, or tokens by id. Only a lexeme that is the whole grammar may match the
    empty text."""

    expression: Expression


class Rule(NamedTuple):
    """The productions of an expression."""

    expression: Expression


class Loop(NamedTuple):
    """A lexeme or a rule, repeated `low` to `high` times."""

    item: Lexeme | Rule
    low: int
    high: int | None


Symbol = Lexeme | Rule | Loop


@dataclass(slots=True)
class Productions:
    start: Expression
    rules: dict[Expression, list[list[Symbol]]] = field(default_factory=dict)
    """The alternatives of each expression that is not a lexeme; the start symbol comes first."""

    def iter_symbols(self) -> Iterator[Symbol]:
        return (each for rule in self.rules.values() for symbols in rule for each in symbols)


def resolve(node: Expression, rules: Mapping[str, Expression]) -> Expression:
    """Return the expression that a reference leads to."""
    while isinstance(node, Reference):
        node = rules[node.name]
    return node


class ProductionBuilder:
    """Builder of the productions of one grammar. Expressions in `split` do not become lexemes."""

    def __init__(
        self,
        make: Expressions,
        rules: dict[str, Expression],
        facts: Facts,
        split: Container[Expression],
    ) -> None:
        self._make = make
        self._rules = rules
        self._facts = facts
        self._split = split
        self._waiting: list[Expression] = []

    def lower(self, start: Expression) -> Productions:
        productions = Productions(resolve(start, self._rules))
        if self._facts.is_regular(productions.start) and productions.start is not EMPTY:
            productions.rules[productions.start] = [[Lexeme(productions.start)]]
            return productions
        self._waiting = [productions.start]
        while self._waiting:
            node = self._waiting.pop()
            if node not in productions.rules:
                productions.rules[node] = [
                    self._lower_symbols(each, node) for each in self._split_options(node)
                ]
        return productions

    def _split_options(self, node: Expression) -> list[Expression]:
        """Return the options of an alternation. Regular ones are joined, unless the result is
        split."""
        if not isinstance(node, Alternation):
            return [node]
        regular = [option for option in node.options if self._facts.is_regular(option)]
        if 1 < len(regular) < len(node.options):
            joined = self._make.make_alternation(regular)
            if joined not in self._split and self._drop_empty(joined) not in self._split:
                return [joined, *(option for option in node.options if option not in regular)]
        return list(node.options)

    def _lower_symbols(self, option: Expression, whole: Expression) -> list[Symbol]:
        """Return the symbols of one alternative of `whole`, which is not a lexeme."""
        if option is EMPTY:
            return []
        if option is not whole and self._is_lexeme(option):
            return [self._lower_symbol(option)]
        if isinstance(option, Concatenation):
            if self._facts.is_regular(option):
                return [self._lower_symbol(part) for part in option.parts]
            return [self._lower_symbol(part) for part in self._join(option.parts)]
        if isinstance(option, Repeat):
            return [self._lower_loop(option)]
        if isinstance(option, EndingEarly):
            raise GrammarError(_UNCLEAR_END)
        if isinstance(option, Substring):
            return [self._lower_symbol(self._join_runs(option.chunks))]
        if isinstance(option, FreeText):
            expanded, rules = free_text.expand(option, self._make)
            self._rules.update(rules)
            return [self._lower_symbol(expanded)]
        if isinstance(option, Literal):
            return [Lexeme(self._make.make_literal(character)) for character in option.text]
        return [self._lower_symbol(option)]

    def _join(self, parts: tuple[Expression, ...]) -> Iterator[Expression]:
        """Yield the parts, with adjacent regular ones joined."""
        run: list[Expression] = []
        for part in parts:
            if self._facts.is_regular(part):
                run.append(part)
                continue
            if run:
                yield self._make.make_concatenation(run)
                run = []
            yield part
        if run:
            yield self._make.make_concatenation(run)

    def _join_runs(self, chunks: tuple[str, ...]) -> Expression:
        """Return the runs of chunks as nested options: after each chunk, stop or go on with the
        next."""
        rest: Expression = EMPTY
        rests = []
        for chunk in reversed(chunks):
            rest = self._make.make_alternation(
                [EMPTY, self._make.make_concatenation([self._make.make_literal(chunk), rest])]
            )
            rests.append(rest)
        return self._make.make_alternation(rests)

    def _is_lexeme(self, node: Expression) -> bool:
        if isinstance(node, Tokens):
            return True
        return self._facts.is_regular(node) and node not in self._split

    def _lower_symbol(self, node: Expression) -> Symbol:
        node = resolve(node, self._rules)
        if not self._is_lexeme(node):
            return self._lower_loop(node) if isinstance(node, Repeat) else self._lower_rule(node)
        if not self._facts.is_nullable(node):
            return Lexeme(node)
        filled = self._drop_empty(node)
        if filled is None or filled in self._split:
            return self._lower_rule(node)
        return Loop(Lexeme(filled), 0, 1)

    def _lower_loop(self, node: Repeat) -> Loop:
        body, low = resolve(node.body, self._rules), node.low
        if self._is_lexeme(body) and self._facts.is_nullable(body):
            filled = self._drop_empty(body)
            if filled is not None and filled not in self._split:
                return Loop(Lexeme(filled), 0, node.high)
        item = self._lower_symbol(body) if self._is_lexeme(body) else self._lower_rule(body)
        return Loop(self._lower_rule(body) if isinstance(item, Loop) else item, low, node.high)

    def _lower_rule(self, node: Expression) -> Rule:
        self._waiting.append(node)
        return Rule(node)

    def _drop_empty(self, node: Expression) -> Expression | None:
        """Return the expression without the empty text; None if nothing remains."""
        if node is EMPTY:
            return None
        if isinstance(node, Repeat) and not self._facts.is_nullable(node.body):
            return self._make.make_repeat(node.body, max(1, node.low), node.high)
        if isinstance(node, Alternation):
            others = [option for option in node.options if option is not EMPTY]
            if not any(map(self._facts.is_nullable, others)):
                return self._make.make_alternation(others)
        return self._make.make_non_empty(node)
