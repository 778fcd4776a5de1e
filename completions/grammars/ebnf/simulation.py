"""A simulation of llguidance's lexer over lexemes that are allowed together at some position.

Sets of lexemes and of bytes are integers with a bit for each member.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from completions.grammars.ebnf import code_points
from completions.grammars.ebnf.automata import END, START, Automaton

MAX_WORK = 300_000
"""States visited before a simulation is given up."""

Place = tuple[int, int]
"""A lexeme's number, and a state of its automaton."""


class Crossing(NamedTuple):
    """A situation in which some lexemes are complete and others may go on."""

    whole: int
    """The lexemes that match the text so far."""
    going_on: int
    """The lexemes that one more character leaves possible."""
    lead_bytes: int
    """The first bytes that the character may have."""


class TooAmbiguousError(Exception):
    """The simulation visited more than MAX_WORK states."""


class Simulation:
    """Simulates the lexemes with these automata."""

    def __init__(self, automata: Mapping[int, Automaton]) -> None:
        self._automata = automata
        self.work = 0
        """States visited so far."""

    def crossings(self) -> Iterator[Crossing]:
        """All crossings; at the end of a text, nothing goes on. Raises TooAmbiguousError."""
        seen: set[frozenset[Place]] = set()
        todo = [self._closed((number, START) for number in self._automata)]
        while todo:
            places = todo.pop()
            # No lexeme matches the empty text, even if its automaton could end at once.
            whole = _lexemes(place for place in places if place[1] == END) if places in seen else 0
            if whole:
                yield Crossing(whole, 0, 0)
            for targets, lead_bytes in self._steps(places).items():
                following = self._closed(targets)
                if whole:
                    yield Crossing(whole, _lexemes(following), lead_bytes)
                if following not in seen:
                    seen.add(following)
                    todo.append(following)

    def _closed(self, places: Iterable[Place]) -> frozenset[Place]:
        """The places, and those reached from them without a character."""
        found: set[Place] = set()
        for number, state in places:
            reached = self._automata[number].closure(state)
            self.work += len(reached)
            if self.work > MAX_WORK:
                raise TooAmbiguousError
            found.update((number, each) for each in reached)
        return frozenset(found)

    def _steps(self, places: frozenset[Place]) -> dict[frozenset[Place], int]:
        """The places that characters lead to, with the lead bytes of these characters."""
        starts: dict[int, list[Place]] = {}
        stops: dict[int, list[Place]] = {}
        for number, state in places:
            for ranges, target in self._automata[number].steps[state]:
                for low, high in ranges:
                    starts.setdefault(low, []).append((number, target))
                    stops.setdefault(high + 1, []).append((number, target))
        lead_bytes: dict[frozenset[Place], int] = {}
        # A sweep over code points: all between two edges lead to the same places.
        active: Counter[Place] = Counter()
        for edge, next_edge in itertools.pairwise(sorted(starts.keys() | stops.keys())):
            active.subtract(stops.get(edge, ()))
            active.update(starts.get(edge, ()))
            targets = frozenset(place for place, count in active.items() if count)
            self.work += len(active)
            if targets:
                found = code_points.lead_bytes(((edge, next_edge - 1),))
                lead_bytes[targets] = lead_bytes.get(targets, 0) | found
        return lead_bytes


def _lexemes(places: Iterable[Place]) -> int:
    found = 0
    for number, _ in places:
        found |= 1 << number
    return found
