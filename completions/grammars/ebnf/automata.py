"""Finite automata of regular expressions, by Thompson's construction: linear in the expression.

Counted repetition counts as unbounded, so an automaton may accept more than its expression. That is
safe: automata only serve to find lexemes that may conflict.
"""

from collections.abc import Mapping

from completions.grammars.ebnf import free_text
from completions.grammars.ebnf.code_points import Ranges
from completions.grammars.ebnf.expressions import (
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
)

START, END = 0, 1
MAX_STATES = 20_000


class TooLargeError(Exception):
    """The expression needs more than MAX_STATES states."""


class Automaton:
    """The automaton of one expression. No step leads to START, and none leaves END."""

    def __init__(self, expression: Expression, rules: Mapping[str, Expression]) -> None:
        self.steps: list[list[tuple[Ranges, int]]] = [[], []]
        """For each state, the states that a character of some ranges leads to."""
        self._jumps: list[list[int]] = [[], []]
        """For each state, the states reached without a character."""
        self._rules = rules
        self._closures: dict[int, tuple[int, ...]] = {}
        self._todo = [(expression, START, END)]
        while self._todo:
            self._connect(*self._todo.pop())

    def _state(self) -> int:
        if len(self.steps) >= MAX_STATES:
            raise TooLargeError
        self.steps.append([])
        self._jumps.append([])
        return len(self.steps) - 1

    def _connect(self, node: Expression, start: int, end: int) -> None:
        """Connect two states by an expression."""
        if isinstance(node, Characters):
            self.steps[start].append((node.ranges, end))
        elif isinstance(node, Literal):
            self._connect_text(node.text, start, end)
        elif isinstance(node, Concatenation):
            self._connect_concatenation(node.parts, start, end)
        elif isinstance(node, Alternation):
            self._todo += [(option, start, end) for option in node.options]
        elif isinstance(node, Repeat):
            self._connect_repeat(node, start, end)
        elif isinstance(node, NonEmpty):
            self._todo.append((node.body, start, end))
        elif isinstance(node, Reference):
            self._todo.append((self._rules[node.name], self._after(start), end))
        elif isinstance(node, Substring):
            self._connect_substring(node.chunks, start, end)
        elif isinstance(node, FreeText):
            self._connect_free_text(node, start, end)
        else:
            raise TypeError(node)

    def _after(self, state: int) -> int:
        """A new state, reached without a character."""
        new = self._state()
        self._jumps[state].append(new)
        return new

    def _connect_text(self, text: str, start: int, end: int) -> None:
        here = start
        for index, character in enumerate(text):
            there = end if index == len(text) - 1 else self._state()
            code_point = ord(character)
            self.steps[here].append((((code_point, code_point),), there))
            here = there

    def _connect_concatenation(self, parts: tuple[Expression, ...], start: int, end: int) -> None:
        here = start
        for part in parts:
            there = self._state()
            self._todo.append((part, here, there))
            here = there
        self._jumps[here].append(end)

    def _connect_repeat(self, node: Repeat, start: int, end: int) -> None:
        begin, finish = self._after(start), self._state()
        self._todo.append((node.body, begin, finish))
        self._jumps[finish].append(end)
        if node.high != 1:
            self._jumps[finish].append(begin)
        if node.low == 0:
            self._jumps[begin].append(end)

    def _connect_substring(self, chunks: tuple[str, ...], start: int, end: int) -> None:
        here = self._after(start)
        for chunk in chunks:
            there = self._after(start)
            self._connect_text(chunk, here, there)
            self._jumps[there].append(end)
            here = there
        self._jumps[start].append(end)

    def _connect_free_text(self, node: FreeText, start: int, end: int) -> None:
        states = {state: self._state() for state in free_text.steps(node.avoided)}
        self._jumps[start].append(states[free_text.START])
        for state, ranges, target in free_text.edges(node):
            self.steps[states[state]].append((ranges, states.get(target, end)))
        if not node.end:
            for number in states.values():
                self._jumps[number].append(end)

    def closure(self, state: int) -> tuple[int, ...]:
        """The states reached without a character that end or that a character leaves."""
        found = self._closures.get(state)
        if found is None:
            seen, stack = {state}, [state]
            while stack:
                fresh = set(self._jumps[stack.pop()]) - seen
                seen |= fresh
                stack += fresh
            found = tuple(each for each in seen if each == END or self.steps[each])
            self._closures[state] = found
        return found
