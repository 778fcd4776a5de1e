"""Nondeterministic automata (Thompson's construction), linear in the size of an expression."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from completions.regular.syntax import (
    Alternation,
    Characters,
    Concatenation,
    Edge,
    Look,
    Node,
    Repeat,
)

L = TypeVar("L")
C = TypeVar("C")


class PatternError(Exception):
    """The matches of a pattern cannot be computed within the limits."""


class TooLargeError(PatternError):
    """An automaton or the pattern of one exceeds the limits."""


class Nfa(Generic[L, C]):
    """Automaton whose states are numbers. A step has a label: the characters or bytes that lead
    along it. A jump, a step without a character, may have a condition."""

    def __init__(self, max_states: int) -> None:
        self.steps: list[list[tuple[L, int]]] = []
        """For each state, labels with the states that they lead to."""
        self.jumps: list[list[tuple[int, C | None]]] = []
        """For each state, the states reached without a character, each with the condition."""
        self._max_states = max_states

    def add_state(self) -> int:
        """Return a new state. Raises TooLargeError."""
        if len(self.steps) >= self._max_states:
            raise TooLargeError
        self.steps.append([])
        self.jumps.append([])
        return len(self.steps) - 1

    def add_step(self, state: int, label: L, to: int | None = None) -> int:
        """Add a step to a state, by default to a new one. Returns that state."""
        to = self.add_state() if to is None else to
        self.steps[state].append((label, to))
        return to

    def add_jump(self, state: int, to: int, condition: C | None = None) -> None:
        self.jumps[state].append((to, condition))

    def find_closure(
        self, states: Iterable[int], holds: Callable[[C], bool] = lambda _: False
    ) -> set[int]:
        """Return the states, and those reached without a character while the conditions hold."""
        closure = set(states)
        waiting = list(closure)
        while waiting:
            for to, condition in self.jumps[waiting.pop()]:
                if to not in closure and (condition is None or holds(condition)):
                    closure.add(to)
                    waiting.append(to)
        return closure


class RegexNfa(Nfa[L, C], ABC):
    """Automaton of the trees of regular expressions, with counts written out."""

    @abstractmethod
    def make_label(self, atom: Characters) -> L: ...

    @abstractmethod
    def make_condition(self, node: Edge | Look) -> C | None:
        """Return the condition that a node is; None if it always holds."""

    def connect(self, node: Node, start: int, end: int) -> None:
        """Connect two states by a tree. Raises TooLargeError."""
        match node:
            case Characters():
                self.add_step(start, self.make_label(node), end)
            case Concatenation(parts):
                for part in parts[:-1]:
                    start = self._connect_to_new(part, start)
                if parts:
                    self.connect(parts[-1], start, end)
                else:
                    self.add_jump(start, end)
            case Alternation(options):
                for option in options:
                    self.connect(option, start, end)
            case Repeat():
                self._connect_repeat(node, start, end)
            case Edge() | Look():
                self.add_jump(start, end, self.make_condition(node))

    def _connect_to_new(self, node: Node, start: int) -> int:
        end = self.add_state()
        self.connect(node, start, end)
        return end

    def _connect_repeat(self, node: Repeat, start: int, end: int) -> None:
        for _ in range(node.low):
            start = self._connect_to_new(node.item, start)
        if node.high is None:
            loop = self.add_state()
            self.add_jump(start, loop)
            self.add_jump(self._connect_to_new(node.item, loop), loop)
            self.add_jump(loop, end)
            return
        self.add_jump(start, end)
        for _ in range(node.high - node.low):
            start = self._connect_to_new(node.item, start)
            self.add_jump(start, end)
