"""Linear recursion as loops: X ::= A X | B is A* B, and X ::= X A | B is B A* (Arden's lemma).

Most recursive rules of hand-written grammars are such lists. As loops they are regular, and fit
into one terminal.
"""

from typing import NamedTuple

from completions.grammars.ebnf.expressions import (
    EMPTY,
    Alternation,
    Concatenation,
    Expression,
    Expressions,
    Reference,
    Repeat,
    children,
    walk,
)
from completions.grammars.ebnf.grammar import Grammar
from completions.grammars.ebnf.rules import references


def remove_linear_recursion(grammar: Grammar) -> None:
    for name, body in grammar.rules.items():
        if name in references(body):
            for right in (True, False):
                solved = _Equation(grammar.make, grammar.make.reference(name), right).solve(body)
                if solved is not None:
                    grammar.rules[name] = solved
                    break


class _Sides(NamedTuple):
    """An expression as A X | B or X A | B: `step` is A, `end` is B. None matches no text."""

    step: Expression | None
    end: Expression | None


class _Equation:
    def __init__(self, make: Expressions, unknown: Expression, right: bool) -> None:
        self._make = make
        self._unknown = unknown
        self._right = right
        self._sides: dict[Expression, _Sides] = {}

    def solve(self, body: Expression) -> Expression | None:
        """The body without the unknown; None if that occurs elsewhere than at one end."""
        for node in walk([body]):
            if node is self._unknown or any(child in self._sides for child in children(node)):
                sides = self._split(node)
                if sides is None:
                    return None
                self._sides[node] = sides
        step, end = self._sides[body]
        if step is None or end is None:
            return None
        loop = self._make.repeat(step, 0, None)
        return self._make.concatenation([loop, end] if self._right else [end, loop])

    def _split(self, node: Expression) -> _Sides | None:
        if isinstance(node, Reference):
            return _Sides(EMPTY, None)
        if isinstance(node, Alternation):
            return self._split_alternation(node)
        if isinstance(node, Concatenation):
            return self._split_concatenation(node)
        if isinstance(node, Repeat) and (node.low, node.high) == (0, 1):
            step, end = self._sides[node.body]
            return _Sides(step, self._alternation([EMPTY, end]))
        return None

    def _split_alternation(self, node: Alternation) -> _Sides:
        """The sides of an alternation. Options without the unknown are ends."""
        sides = [self._sides.get(option, _Sides(None, option)) for option in node.options]
        return _Sides(
            self._alternation([step for step, _ in sides]),
            self._alternation([end for _, end in sides]),
        )

    def _split_concatenation(self, node: Concatenation) -> _Sides | None:
        parts = node.parts
        edge, others = (parts[-1], parts[:-1]) if self._right else (parts[0], parts[1:])
        if edge not in self._sides or any(part in self._sides for part in others):
            return None
        step, end = (
            each and self._make.concatenation([*others, each] if self._right else [each, *others])
            for each in self._sides[edge]
        )
        return _Sides(step, end)

    def _alternation(self, options: list[Expression | None]) -> Expression | None:
        present = [option for option in options if option is not None]
        return self._make.alternation(present) if present else None
