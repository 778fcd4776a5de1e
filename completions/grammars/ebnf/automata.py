"""Finite automata of lexemes, and a simulation of llguidance's lexer over several of them.

The automata follow Thompson's construction, linear in the expression. Counted repetition counts as
unbounded, so an automaton may accept more than its expression. That is safe: automata only serve to
find lexemes that may conflict.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Never

from completions.grammars.ebnf import free_text
from completions.grammars.ebnf.expressions import (
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
)
from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.nfa import Nfa

MAX_STATES = 20_000
"""States of one automaton."""
START, END = 0, 1
MAX_WORK = 300_000
"""States visited before a simulation is given up."""


class LexemeNfa(Nfa[Ranges, Never]):
    """The automaton of one expression. No step leads to START, and none leaves END. Raises
    TooLargeError."""

    def __init__(self, expression: Expression, rules: Mapping[str, Expression]) -> None:
        super().__init__(MAX_STATES)
        self.add_state()
        self.add_state()
        self._rules = rules
        self._closures: dict[int, tuple[int, ...]] = {}
        self._todo = [(expression, START, END)]
        while self._todo:
            self._connect(*self._todo.pop())

    def _connect(self, node: Expression, start: int, end: int) -> None:
        """Connect two states by an expression, the parts of which may wait in `_todo`."""
        match node:
            case Characters(ranges):
                self.add_step(start, ranges, end)
            case Literal(text):
                self._connect_text(text, start, end)
            case Concatenation(parts):
                states = [start, *(self.add_state() for _ in parts)]
                self._todo += zip(parts, states[:-1], states[1:], strict=True)
                self.add_jump(states[-1], end)
            case Alternation(options):
                self._todo += [(option, start, end) for option in options]
            case Repeat():
                self._connect_repeat(node, start, end)
            case NonEmpty(body) | EndingEarly(body):
                self._todo.append((body, start, end))
            case Reference(name):
                self._todo.append((self._rules[name], self._add_state_after(start), end))
            case Substring(chunks):
                self._connect_substring(chunks, start, end)
            case FreeText():
                self._connect_free_text(node, start, end)

    def _add_state_after(self, state: int) -> int:
        """Return a new state, reached without a character."""
        new = self.add_state()
        self.add_jump(state, new)
        return new

    def _connect_repeat(self, node: Repeat, start: int, end: int) -> None:
        begin, finish = self._add_state_after(start), self.add_state()
        self._todo.append((node.body, begin, finish))
        self.add_jump(finish, end)
        if node.high != 1:
            self.add_jump(finish, begin)
        if node.low == 0:
            self.add_jump(begin, end)

    def _connect_text(self, text: str, start: int, end: int) -> None:
        for index, character in enumerate(text):
            point = ord(character)
            start = self.add_step(start, ((point, point),), end if index == len(text) - 1 else None)

    def _connect_substring(self, chunks: tuple[str, ...], start: int, end: int) -> None:
        state = self._add_state_after(start)
        for chunk in chunks:
            there = self._add_state_after(start)
            self._connect_text(chunk, state, there)
            self.add_jump(there, end)
            state = there
        self.add_jump(start, end)

    def _connect_free_text(self, node: FreeText, start: int, end: int) -> None:
        states = {state: self.add_state() for state in free_text.build_steps(node.avoided)}
        self.add_jump(start, states[free_text.START])
        for state, ranges, target in free_text.iter_edges(node):
            self.add_step(states[state], ranges, states.get(target, end))
        if not node.end:
            for number in states.values():
                self.add_jump(number, end)

    def list_active(self, state: int) -> tuple[int, ...]:
        """Return the states reached without a character that are final or that a character
        leaves."""
        if state not in self._closures:
            closure = self.find_closure((state,))
            active = tuple(each for each in closure if each == END or self.steps[each])
            self._closures[state] = active
        return self._closures[state]


Position = tuple[int, int]
"""A lexeme's number, and a state of its automaton."""


class Crossing(NamedTuple):
    """A situation in which some lexemes are complete and others may continue."""

    whole: int
    """The lexemes that match the text so far."""
    continues: int
    """The lexemes that one more character leaves possible."""
    lead_bytes: int
    """The first bytes that the character may have."""


class TooAmbiguousError(Exception):
    """The simulation visited more than MAX_WORK states."""


class Simulation:
    """Simulation of the lexemes with these automata."""

    def __init__(self, automata: Mapping[int, LexemeNfa]) -> None:
        self._automata = automata
        self.work = 0
        """States visited so far."""

    def iter_crossings(self) -> Iterator[Crossing]:
        """Yield all crossings; at the end of a text, nothing goes on. Raises TooAmbiguousError."""
        seen: set[frozenset[Position]] = set()
        todo = [self._close((number, START) for number in self._automata)]
        while todo:
            positions = todo.pop()
            # No lexeme matches the empty text, even if its automaton could end at once.
            whole = (
                _find_lexemes(position for position in positions if position[1] == END)
                if positions in seen
                else 0
            )
            if whole:
                yield Crossing(whole, 0, 0)
            for targets, lead_bytes in self._step(positions).items():
                following = self._close(targets)
                if whole:
                    yield Crossing(whole, _find_lexemes(following), lead_bytes)
                if following not in seen:
                    seen.add(following)
                    todo.append(following)

    def _close(self, positions: Iterable[Position]) -> frozenset[Position]:
        """Return the places, and those reached from them without a character."""
        closed: set[Position] = set()
        for number, state in positions:
            reached = self._automata[number].list_active(state)
            self.work += len(reached)
            if self.work > MAX_WORK:
                raise TooAmbiguousError
            closed.update((number, each) for each in reached)
        return frozenset(closed)

    def _step(self, positions: frozenset[Position]) -> dict[frozenset[Position], int]:
        """Return the places that characters lead to, with the lead bytes of these characters."""
        starts: dict[int, list[Position]] = {}
        stops: dict[int, list[Position]] = {}
        for number, state in positions:
            for ranges, target in self._automata[number].steps[state]:
                for low, high in ranges:
                    starts.setdefault(low, []).append((number, target))
                    stops.setdefault(high + 1, []).append((number, target))
        lead_bytes: dict[frozenset[Position], int] = {}
        # A sweep over code points: all between two edges lead to the same places.
        active: Counter[Position] = Counter()
        for edge, next_edge in itertools.pairwise(sorted(starts.keys() | stops.keys())):
            active.subtract(stops.get(edge, ()))
            active.update(starts.get(edge, ()))
            targets = frozenset(position for position, count in active.items() if count)
            self.work += len(active)
            if targets:
                bits = code_points.find_lead_bytes(((edge, next_edge - 1),))
                lead_bytes[targets] = lead_bytes.get(targets, 0) | bits
        return lead_bytes


def _find_lexemes(positions: Iterable[Position]) -> int:
    lexemes = 0
    for number, _ in positions:
        lexemes |= 1 << number
    return lexemes
