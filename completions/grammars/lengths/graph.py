"""Nondeterministic automata over bytes."""

from collections.abc import Iterable

ANY = frozenset(range(256))
QUOTED, UNKNOWN = 0, 1
LEAVING = (frozenset(b'"\\'), frozenset(b",}] \t\n\r"))
"""By kind of loop: the bytes with which a text can leave it. After a value, JSON continues with no
other bytes."""


class Graph:
    """An automaton, built from left to right. Each `add_` method takes the state where its part
    begins, and returns the state where it ends."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[frozenset[int], int]]] = []
        """By state: sets of bytes, each with the next state."""
        self.skips: list[list[int]] = []
        """By state: states that are reached without a byte."""
        self.loops: dict[int, int] = {}
        """States that loop on all bytes except those in LEAVING, with their kind."""

    def add_state(self) -> int:
        self.steps.append([])
        self.skips.append([])
        return len(self.steps) - 1

    def add_skip(self, state: int, to: int) -> None:
        self.skips[state].append(to)

    def add_step(self, state: int, bytes_: frozenset[int], to: int | None = None) -> int:
        to = self.add_state() if to is None else to
        self.steps[state].append((bytes_, to))
        return to

    def add_literal(self, state: int, text: bytes) -> int:
        for byte in text:
            state = self.add_step(state, frozenset((byte,)))
        return state

    def add_either(self, ends: Iterable[int]) -> int:
        """Return a common end for the ends of several parts."""
        end = self.add_state()
        for each in ends:
            self.add_skip(each, end)
        return end

    def add_some(self, state: int, bytes_: frozenset[int]) -> int:
        """Add a loop over any number of these bytes."""
        end = self.add_state()
        self.add_skip(state, end)
        return self.add_step(end, bytes_, end)

    def find_closure(self, state: int) -> list[int]:
        """Return the state and all states that it reaches without a byte."""
        states, waiting = {state}, [state]
        while waiting:
            new = [to for to in self.skips[waiting.pop()] if to not in states]
            states.update(new)
            waiting += new
        return list(states)

    def find_longest(self, start: int) -> int | None:
        """Return the length in bytes of the longest path; None if there are paths of any length."""
        lengths: dict[int, int] = {}
        open_: set[int] = set()
        waiting = [start]
        while waiting:
            state = waiting[-1]
            edges = [(0, to) for to in self.skips[state]] + [(1, to) for _, to in self.steps[state]]
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
