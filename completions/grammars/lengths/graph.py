"""Nondeterministic automata over bytes."""

from collections.abc import Iterable
from typing import Never

from completions.regular.code_points import Ranges
from completions.regular.nfa import Nfa

MAX_STATES = 20_000
ANY: Ranges = ((0x00, 0xFF),)
QUOTED, UNKNOWN = 0, 1
LEAVING = (b'"\\', b",}] \t\n\r")
"""By kind of loop: the bytes with which a text can leave it. After a value, JSON continues with no
other bytes."""


class Graph(Nfa[Ranges, Never]):
    """An automaton, built from left to right. Each `add_` method takes the state where its part
    begins, and returns the state where it ends. Raises TooLargeError."""

    def __init__(self) -> None:
        super().__init__(MAX_STATES)
        self.loops: dict[int, int] = {}
        """States that loop on all bytes except those in LEAVING, with their kind."""

    def add_literal(self, state: int, text: bytes) -> int:
        for byte in text:
            state = self.add_step(state, ((byte, byte),))
        return state

    def add_either(self, ends: Iterable[int]) -> int:
        """Return a common end for the ends of several parts."""
        end = self.add_state()
        for each in ends:
            self.add_jump(each, end)
        return end

    def add_some(self, state: int, ranges: Ranges) -> int:
        """Add a loop over any number of these bytes."""
        end = self.add_state()
        self.add_jump(state, end)
        return self.add_step(end, ranges, end)

    def find_longest(self, start: int) -> int | None:
        """Return the length in bytes of the longest path; None if there are paths of any length."""
        lengths: dict[int, int] = {}
        open_: set[int] = set()
        waiting = [start]
        while waiting:
            state = waiting[-1]
            edges = [(0, to) for to, _ in self.jumps[state]] + [
                (1, to) for _, to in self.steps[state]
            ]
            if state not in open_:
                open_.add(state)
                left = [to for _, to in edges if to not in lengths]
                if any(to in open_ for to in left):
                    return None
                waiting += left
                continue
            waiting.pop()
            if state not in lengths:
                lengths[state] = max((size + lengths[to] for size, to in edges), default=0)
            open_.discard(state)
        return lengths[start]
