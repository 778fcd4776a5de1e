"""Sets of texts as deterministic automata, which can be complemented and intersected.

Built from patterns by the subset construction (Hopcroft, Motwani, Ullman: Introduction to Automata
Theory, 2.3).
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from completions.regular.network import Network, Situation
from completions.regular.nfa import TooLargeError

MAX_STATES = 300
MAX_WORK = 100_000
"""Threads of the network that one construction may follow: some 0.3 s."""
LAST = 0x10FFFF


@dataclass(frozen=True, eq=False)
class Dfa:
    """A complete automaton. State 0 is the first."""

    cuts: tuple[int, ...]
    """Code points at which the intervals of characters begin; the first is 0."""
    rows: tuple[tuple[int, ...], ...]
    """For each state, the next state for each interval."""
    final: tuple[bool, ...]

    def accepts(self, text: str) -> bool:
        state = 0
        for character in text:
            state = self.rows[state][bisect_right(self.cuts, ord(character)) - 1]
        return self.final[state]

    @cached_property
    def is_empty(self) -> bool:
        return not any(self.final)

    def complement(self) -> "Dfa":
        return Dfa(self.cuts, self.rows, tuple(not final for final in self.final))

    def __and__(self, other: "Dfa") -> "Dfa":
        cuts = tuple(sorted({*self.cuts, *other.cuts}))
        mine = [bisect_right(self.cuts, cut) - 1 for cut in cuts]
        theirs = [bisect_right(other.cuts, cut) - 1 for cut in cuts]
        numbers = {(0, 0): 0}
        pairs = [(0, 0)]
        rows = []
        for one, two in pairs:
            row = []
            for a, b in zip(mine, theirs, strict=True):
                pair = self.rows[one][a], other.rows[two][b]
                if pair not in numbers:
                    numbers[pair] = _make_indices(len(pairs), 4)
                    pairs.append(pair)
                row.append(numbers[pair])
            rows.append(tuple(row))
        final = tuple(self.final[one] and other.final[two] for one, two in pairs)
        return _minimize(Dfa(cuts, tuple(rows), final))


ANY = Dfa((0,), ((0,),), (True,))


def _make_indices(count: int, factor: int = 1) -> int:
    if count >= factor * MAX_STATES:
        raise TooLargeError
    return count


def from_literals(texts: Iterable[str]) -> Dfa:
    """Exactly these texts."""
    trie: list[dict[int, int]] = [{}]
    ends = set()
    for text in texts:
        state = 0
        for character in text:
            if ord(character) not in trie[state]:
                trie.append({})
                trie[state][ord(character)] = _make_indices(len(trie) - 1, 4)
            state = trie[state][ord(character)]
        ends.add(state)
    dead = len(trie)
    points = {point for state in trie for point in state}
    cuts = tuple(sorted({0, *points, *(point + 1 for point in points if point < LAST)}))
    rows = tuple(tuple(state.get(cut, dead) for cut in cuts) for state in [*trie, {}])
    return _minimize(Dfa(cuts, rows, tuple(state in ends for state in range(dead + 1))))


def from_lengths(low: int, high: int | None) -> Dfa:
    """Return the texts of some length in characters."""
    count = _make_indices(low if high is None else high + 1) + 1
    rows = tuple((min(state + 1, count - 1),) for state in range(count))
    final = tuple(low <= state and (high is None or state <= high) for state in range(count))
    return Dfa((0,), rows, final)


def determinize(network: Network) -> Dfa:
    """Return the texts that a network accepts. Raises PatternError."""
    first = network.start()
    numbers, situations = {first: 0}, [first]
    max_work = network.work + MAX_WORK
    steps: list[list[tuple[int, Situation]]] = []
    for situation in situations:
        row = []
        for cut in network.list_cuts(situation):
            if network.work > max_work:
                raise TooLargeError
            target = network.step(situation, cut)
            if target not in numbers:
                numbers[target] = _make_indices(len(situations))
                situations.append(target)
            row.append((cut, target))
        steps.append(row)
    cuts = tuple(sorted({cut for row in steps for cut, _ in row}))
    rows = []
    for row in steps:
        starts = [cut for cut, _ in row]
        rows.append(tuple(numbers[row[bisect_right(starts, cut) - 1][1]] for cut in cuts))
    final = tuple(map(network.is_final, situations))
    return _minimize(Dfa(cuts, tuple(rows), final))


def _minimize(automaton: Dfa) -> Dfa:
    """Return the same texts with the fewest states, by refinement of a partition (Moore)."""
    groups = [int(final) for final in automaton.final]
    while True:
        signatures = [
            (groups[state], *(groups[target] for target in row))
            for state, row in enumerate(automaton.rows)
        ]
        numbers: dict[tuple[int, ...], int] = {}
        fresh = [numbers.setdefault(signature, len(numbers)) for signature in signatures]
        if len(numbers) == len(set(groups)):
            break
        groups = fresh
    # State 0 came first, so its group is numbered 0.
    count = len(numbers)
    rows: list[tuple[int, ...]] = [()] * count
    final = [False] * count
    for state, group in enumerate(fresh):
        rows[group] = tuple(fresh[target] for target in automaton.rows[state])
        final[group] = automaton.final[state]
    states = [0] + [
        index
        for index in range(1, len(automaton.cuts))
        if any(row[index] != row[index - 1] for row in rows)
    ]
    return Dfa(
        tuple(automaton.cuts[index] for index in states),
        tuple(tuple(row[index] for index in states) for row in rows),
        tuple(final),
    )
