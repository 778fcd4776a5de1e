"""An automaton as a regular expression, by the elimination of its states one by one (Hopcroft,
Motwani, Ullman: Introduction to Automata Theory, 3.2)."""

from typing import NamedTuple

from completions.regular import code_points
from completions.regular.dfa import LAST, Dfa
from completions.regular.nfa import TooLargeError
from completions.regular.syntax import (
    EMPTY,
    NOTHING,
    Characters,
    Node,
    Repeat,
    make_alternation,
    make_concatenation,
)
from completions.regular.writer import Writer, write_class

MAX_SIZE = 6_000
"""Characters of a regular expression as it is written."""
_START, _STOP = -1, -2


class _Sized(NamedTuple):
    node: Node
    size: int
    """About the number of characters that it is written with."""


_Paths = dict[int, dict[int, list[_Sized]]]
"""For each state and each next state, the alternatives that lead there."""
_NOTHING_MORE = _Sized(EMPTY, 0)


def write_pattern(automaton: Dfa) -> str:
    """Return a pattern, anchored at both ends, of exactly the texts of the automaton. Raises
    TooLargeError."""
    return f"^{Writer().write(make_regex(automaton))}$"


def make_regex(automaton: Dfa) -> Node:
    """Return the texts of the automaton as a tree without conditions. Raises TooLargeError."""
    live = _find_live(automaton)
    if 0 not in live:
        return NOTHING
    paths: _Paths = {state: _collect_edges(automaton, state, live) for state in live}
    paths[_START] = {0: [_NOTHING_MORE]}
    for state in live:
        if automaton.final[state]:
            paths[state][_STOP] = [_NOTHING_MORE]
    waiting = set(live)
    while waiting:
        incoming = dict.fromkeys(waiting, 0)
        for source, targets in paths.items():
            for target in targets:
                if target in incoming and target != source:
                    incoming[target] += _compute_weight(targets[target])
        cheapest = min(waiting, key=lambda state: _compute_cost(paths, state, incoming[state]))
        waiting.remove(cheapest)
        _eliminate(paths, cheapest)
    return _alternate(paths[_START][_STOP]).node


def _compute_cost(paths: _Paths, state: int, incoming: int) -> tuple[int, int]:
    targets = paths[state]
    loop = _compute_weight(targets.get(state, []))
    outgoing = sum(_compute_weight(ways) for target, ways in targets.items() if target != state)
    outs, size = sum(target != state for target in targets), incoming + outgoing + loop
    return size * max(outs, 1), state


def _compute_weight(ways: list[_Sized]) -> int:
    return sum(way.size + 1 for way in ways)


def _find_live(automaton: Dfa) -> list[int]:
    """Return the states from which a text may end."""
    before: dict[int, set[int]] = {}
    for state, row in enumerate(automaton.rows):
        for target in row:
            before.setdefault(target, set()).add(state)
    states = {state for state, final in enumerate(automaton.final) if final}
    stack = list(states)
    while stack:
        fresh = before.get(stack.pop(), set()) - states
        states |= fresh
        stack += fresh
    return sorted(states)


def _collect_edges(automaton: Dfa, state: int, live: list[int]) -> dict[int, list[_Sized]]:
    intervals: dict[int, list[tuple[int, int]]] = {}
    ends = [*(cut - 1 for cut in automaton.cuts[1:]), LAST]
    for low, high, target in zip(automaton.cuts, ends, automaton.rows[state], strict=True):
        if target in live:
            intervals.setdefault(target, []).append((low, high))
    edges = {}
    for target, runs in intervals.items():
        ranges = code_points.merge(runs)
        edges[target] = [_Sized(Characters(ranges), len(write_class(ranges)))]
    return edges


def _eliminate(paths: _Paths, state: int) -> None:
    """Replace every way through a state by one that bypasses it."""
    onward = paths.pop(state)
    loop = onward.pop(state, None)
    middle = [_repeat(_alternate(loop))] if loop else []
    size = 0
    for targets in paths.values():
        before = targets.pop(state, None)
        if before is None:
            continue
        head = [_alternate(before), *middle]
        for target, after in onward.items():
            targets.setdefault(target, []).append(_concatenate([*head, _alternate(after)]))
        size += sum(_compute_weight(ways) for ways in targets.values())
        if size > MAX_SIZE:
            raise TooLargeError


def _alternate(ways: list[_Sized]) -> _Sized:
    others = [way for way in ways if way is not _NOTHING_MORE]
    if len(others) < 2:
        result = others[0] if others else _NOTHING_MORE
    else:
        # A pair of parentheses with the sign of a group, and the bars.
        size = 3 + sum(way.size + 1 for way in others)
        result = _Sized(make_alternation(way.node for way in others), size)
    if not others or len(others) == len(ways):
        return result
    return _Sized(Repeat(result.node, 0, 1), _measure_group(result) + 1)


def _repeat(way: _Sized) -> _Sized:
    return _Sized(Repeat(way.node, 0, None), _measure_group(way) + 1)


def _concatenate(ways: list[_Sized]) -> _Sized:
    parts = [way for way in ways if way is not _NOTHING_MORE]
    if len(parts) < 2:
        return parts[0] if parts else _NOTHING_MORE
    return _Sized(make_concatenation(way.node for way in parts), sum(way.size for way in parts))


def _measure_group(way: _Sized) -> int:
    return way.size + 4 * isinstance(way.node, Repeat | type(EMPTY))
