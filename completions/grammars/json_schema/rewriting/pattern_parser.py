"""A pattern of JSON Schema as a network of states (Thompson's construction).

The pattern has Rust's syntax, as llguidance reads it: `\\d` and `\\w` are ASCII. Python's own
parser reads it; what the two read differently is refused.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

# The standard library has no public parser of patterns since sre_parse was deprecated in 3.11, and
# one of our own would have to agree with `re` on every pattern. test_pattern_parser.py fails where
# these modules change.
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from completions.grammars.complaints import shown

BEGINNING, END = -1, 0x110000
"""What stands before the first character of a text, and after its last."""
MAX_NODES = 3_000
_DIFFERENT = re.compile(
    r"(?<!\\)(?:\\\\)*\\(?:[pPbBAZzGQEKRXhHNk0-9]|[xu]\{)|\[\[:|\[\^?\[|&&|--|~~|\(\?(?![:P<])|\(\?<[=!]"
)
"""Parts of patterns that Rust and Python read differently, or that one of them lacks."""
_WORD = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE = [(0x9, 0xD), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
          (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]  # fmt: skip
Intervals = list[tuple[int, int]]


class PatternError(Exception):
    """The matches of a pattern cannot be computed within the limits."""


class UnreadablePatternError(PatternError):
    """The pattern uses syntax that this parser does not read."""


@dataclass(slots=True)
class Network:
    """States with steps by characters, and with jumps that need none."""

    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """For each state: first and last code point, and the next state."""
    jumps: list[list[int]] = field(default_factory=list)
    first: int = 0
    last: int = 0

    def add(self) -> int:
        if len(self.steps) >= MAX_NODES:
            raise UnreadablePatternError("it is too large; give a shorter one")
        self.steps.append([])
        self.jumps.append([])
        return len(self.steps) - 1

    def closed(self, states: Iterable[int]) -> frozenset[int]:
        seen = set(states)
        stack = list(seen)
        while stack:
            fresh = [state for state in self.jumps[stack.pop()] if state not in seen]
            seen.update(fresh)
            stack += fresh
        return frozenset(seen)

    def step(self, states: Iterable[int], point: int) -> set[int]:
        return {
            target
            for state in states
            for low, high, target in self.steps[state]
            if low <= point <= high
        }

    def accepts(self, text: str) -> bool:
        states = self.closed({self.first})
        for point in (BEGINNING, *map(ord, text), END):
            states = self.closed(self.step(states, point))
        return self.last in states

    def cuts(self, states: Iterable[int]) -> list[int]:
        """The code points at which another step may become possible; the first is 0."""
        edges = [edge for state in states for low, high, _ in self.steps[state]
                 for edge in (low, high + 1)]  # fmt: skip
        return sorted({0, *(edge for edge in edges if 0 <= edge < END)})


@lru_cache(maxsize=256)
def network(pattern: str) -> Network:
    """Raises UnreadablePatternError, which names the pattern and what to change in it."""
    try:
        return _built(pattern)
    except UnreadablePatternError as error:
        raise UnreadablePatternError(f"{shown(pattern)}: {error}") from error


def _built(pattern: str) -> Network:
    if found := _DIFFERENT.search(pattern):
        raise UnreadablePatternError(f"it has {found[0]}; write it without that")
    try:
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UnreadablePatternError(str(error)) from error
    made = Network()
    made.first, made.last = made.add(), made.add()
    start, end = made.add(), made.add()
    for state in (made.first, made.last):
        made.steps[state].append((BEGINNING, END, state))
    made.jumps[made.first].append(start)
    made.jumps[end].append(made.last)
    _sequence(made, parsed, start, end)
    return made


def _sequence(made: Network, items: Any, start: int, end: int) -> None:
    for operation, argument in items:
        there = made.add()
        _connect(made, operation, argument, start, there)
        start = there
    made.jumps[start].append(end)


def _connect(made: Network, operation: Any, argument: Any, start: int, end: int) -> None:
    if operation is codes.SUBPATTERN:
        _, on, off, items = argument
        if on or off:
            raise UnreadablePatternError("it has flags; write it without them")
        _sequence(made, items, start, end)
    elif operation is codes.BRANCH:
        for items in argument[1]:
            _sequence(made, items, start, end)
    elif operation in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        _repeat(made, argument, start, end)
    elif operation is codes.AT and argument in (codes.AT_BEGINNING, codes.AT_END):
        # Not consumed: more anchors may follow in the same place.
        _anchor(made, argument is codes.AT_BEGINNING, start, end)
    else:
        for low, high in _characters(operation, argument):
            made.steps[start].append((low, high, end))


def _anchor(made: Network, beginning: bool, start: int, end: int) -> None:
    point = BEGINNING if beginning else END
    made.steps[start].append((point, point, end))


def _repeat(made: Network, argument: tuple[Any, Any, Any], start: int, end: int) -> None:
    low, high, items = argument
    for _ in range(low):
        there = made.add()
        _sequence(made, items, start, there)
        start = there
    if high is codes.MAXREPEAT:
        loop, after = made.add(), made.add()
        made.jumps[start].append(loop)
        _sequence(made, items, loop, after)
        made.jumps[after].append(loop)
        made.jumps[loop].append(end)
        return
    made.jumps[start].append(end)
    for _ in range(high - low):
        there = made.add()
        _sequence(made, items, start, there)
        made.jumps[there].append(end)
        start = there


def _characters(operation: Any, argument: Any) -> Intervals:
    if operation is codes.LITERAL:
        return [(argument, argument)]
    if operation is codes.NOT_LITERAL:
        return _others([(argument, argument)])
    if operation is codes.ANY:
        return _others([(0xA, 0xA)])
    if operation is codes.IN:
        negated = argument[0][0] is codes.NEGATE
        inside = [each for item in argument[negated:] for each in _class_item(*item)]
        return _others(inside) if negated else inside
    raise UnreadablePatternError(f"it has {str(operation).lower()}; write it without that")


def _class_item(operation: Any, argument: Any) -> Intervals:
    if operation is codes.LITERAL:
        return [(argument, argument)]
    if operation is codes.RANGE:
        return [argument]
    if operation is codes.CATEGORY:
        _, _, name = str(argument).rpartition("_")
        inside = {"DIGIT": [(0x30, 0x39)], "SPACE": _SPACE, "WORD": _WORD}[name]
        return _others(inside) if "_NOT_" in str(argument) else inside
    raise UnreadablePatternError(f"it has {str(operation).lower()}; write it without that")


def _others(intervals: Intervals) -> Intervals:
    found, start = [], 0
    for low, high in sorted(intervals):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, END - 1)] if start < END else found
