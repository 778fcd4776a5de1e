"""llguidance's lexer simulated over the lexemes that are allowed together at some position.

Sets of lexemes, and of bytes, are integers with a bit for each.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from completions.grammars.ebnf import code_points
from completions.grammars.ebnf.automata import END, START, Automaton

MAX_WORK = 300_000
"""States of automata visited before a simulation is given up."""

Place = tuple[int, int]
"""A lexeme's number, and a state of its automaton."""


class Crossing(NamedTuple):
    """A text after which some lexemes are whole, and a way on."""

    whole: int
    """The lexemes that the text matches."""
    going_on: int
    """The lexemes that one more character leaves possible."""
    lead_bytes: int
    """What that character may begin with."""


class TooAmbiguousError(Exception):
    """The simulation took more than MAX_WORK."""


class Simulation:
    """Of the lexemes with these automata."""

    def __init__(self, automata: Mapping[int, Automaton]) -> None:
        self._automata = automata
        self.work = 0
        """States visited so far."""

    def crossings(self) -> Iterator[Crossing]:
        """Every one there is; one with no way on for an end. Raises TooAmbiguousError."""
        seen: set[frozenset[Place]] = set()
        todo = [self._closed((number, START) for number in self._automata)]
        while todo:
            places = todo.pop()
            # A text of no character is no lexeme's, even where an automaton could end at once.
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
        """With what is reached from there without a character."""
        found: set[Place] = set()
        for number, state in places:
            reached = self._automata[number].closure(state)
            self.work += len(reached)
            if self.work > MAX_WORK:
                raise TooAmbiguousError
            found.update((number, each) for each in reached)
        return frozenset(found)

    def _steps(self, places: frozenset[Place]) -> dict[frozenset[Place], int]:
        """Where characters lead from some places, and the characters' lead bytes."""
        starts: dict[int, list[Place]] = {}
        stops: dict[int, list[Place]] = {}
        for number, state in places:
            for ranges, target in self._automata[number].steps[state]:
                for low, high in ranges:
                    starts.setdefault(low, []).append((number, target))
                    stops.setdefault(high + 1, []).append((number, target))
        lead_bytes: dict[frozenset[Place], int] = {}
        # Sweep over the code points; between two edges, all lead to the same places.
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
