"""A pattern as a network of states (Thompson's construction), with look-around.

A thread is a state that the text so far leads to, with conditions on the rest of the text: those of
the look-aheads on its way. Each condition is a set of threads of its own, so that all of them
advance together, character by character. A look-behind is decided at once: threads of its own have
followed the text since the beginning.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeVar, cast

from completions.grammars import code_points
from completions.grammars.code_points import Ranges
from completions.grammars.complaints import shown
from completions.grammars.patterns.reader import PatternSyntaxError, read
from completions.grammars.patterns.syntax import (
    ANYTHING,
    Characters,
    Choice,
    Edge,
    Look,
    Node,
    Repeat,
    Sequence,
    walk,
)

MAX_NODES = 3_000


class PatternError(Exception):
    """The matches of a pattern cannot be computed within the limits."""


class UnreadablePatternError(PatternError):
    """The pattern has a part that no network can follow."""


class Thread(NamedTuple):
    state: int
    conditions: "frozenset[Condition]"


class Condition(NamedTuple):
    """What the rest of the text must match from its first character on, or must not."""

    negated: bool
    threads: frozenset[Thread]
    last: int


class Situation(NamedTuple):
    """All threads after some text."""

    threads: frozenset[Thread]
    behind: tuple[frozenset[Thread], ...] = ()
    """For each look-behind, its own threads."""


@dataclass(slots=True)
class _Look:
    first: int
    last: int
    behind: int | None = None
    """The index among the look-behinds."""


@dataclass(slots=True)
class _Jump:
    """A step without a character."""

    target: int
    condition: _Look | Edge | None = None
    negated: bool = False


_Set = TypeVar("_Set", frozenset[Thread], frozenset[Condition])
_NONE: frozenset[Condition] = frozenset()


@dataclass(slots=True)
class Network:
    steps: list[list[tuple[Ranges, list[int], int]]] = field(default_factory=list)
    """For each state: some characters, the first of each of their ranges, and the next state."""
    jumps: list[list[_Jump]] = field(default_factory=list)
    first: int = 0
    last: int = 0
    behind: list[_Look] = field(default_factory=list)
    """Each comes after those inside it."""
    end: _Look | None = None
    """One more character."""
    work: int = 0
    """How many threads and conditions were followed so far."""
    _known: dict[object, object] = field(default_factory=dict)
    """Each set of conditions or threads once, so that equal ones are compared by identity."""

    def accepts(self, text: str) -> bool:
        """Whether the pattern is found in the text."""
        situation = self.beginning()
        for character in text:
            situation = self.step(situation, ord(character))
        return self.is_final(situation)

    def beginning(self) -> Situation:
        behind: list[frozenset[Thread]] = []
        for look in self.behind:
            behind.append(self._closed([Thread(look.first, _NONE)], behind, at_beginning=True))
        threads = self._closed([Thread(self.first, _NONE)], behind, at_beginning=True)
        return self._situation(threads, behind)

    def step(self, situation: Situation, point: int) -> Situation:
        """The situation after one more character."""
        behind: list[frozenset[Thread]] = []
        for threads in situation.behind:
            behind.append(self._after(threads, point, behind))
        return self._situation(self._after(situation.threads, point, behind), behind)

    def is_final(self, situation: Situation) -> bool:
        return self._holds(situation.threads, self.last)

    def cuts(self, situation: Situation) -> list[int]:
        """The code points at which another step may become possible; the first is 0."""
        edges = {0}
        for threads in _all(situation):
            for thread in threads:
                for ranges, _, _ in self.steps[thread.state]:
                    for low, high in ranges:
                        edges.update((low, high + 1))
        return sorted(edge for edge in edges if edge <= code_points.ALL[-1][1])

    def _situation(self, threads: frozenset[Thread], behind: list[frozenset[Thread]]) -> Situation:
        if Thread(self.last, _NONE) in threads:  # nothing that follows can change that
            return Situation(frozenset((Thread(self.last, _NONE),)))
        return Situation(threads, tuple(behind))

    def _holds(self, threads: Iterable[Thread], last: int) -> bool:
        """Whether a match is complete at the end of the text."""
        return any(
            thread.state == last
            and all(
                self._holds(each.threads, each.last) != each.negated for each in thread.conditions
            )
            for thread in threads
        )

    def _after(
        self, threads: Iterable[Thread], point: int, behind: list[frozenset[Thread]]
    ) -> frozenset[Thread]:
        reached = []
        known: dict[Condition, Condition | bool] = {}
        for state, conditions in threads:
            self.work += 1
            targets = [
                target
                for ranges, starts, target in self.steps[state]
                if (index := bisect_right(starts, point)) and point <= ranges[index - 1][1]
            ]
            if not targets:
                continue
            moved = set()
            for each in conditions:
                if each not in known:
                    advanced = self._after(each.threads, point, behind)
                    known[each] = _simplified(each._replace(threads=advanced))
                self.work += 1
                moved.add(known[each])
            if False not in moved:
                left = self._once(frozenset(each for each in moved if isinstance(each, Condition)))
                reached += [Thread(target, left) for target in targets]
        return self._closed(reached, behind)

    def _closed(
        self,
        threads: Iterable[Thread],
        behind: list[frozenset[Thread]],
        *,
        at_beginning: bool = False,
    ) -> frozenset[Thread]:
        seen = set(threads)
        stack = list(seen)
        while stack:
            state, conditions = stack.pop()
            self.work += 1
            for jump in self.jumps[state]:
                added = self._condition(jump, behind, at_beginning)
                if added is False:
                    continue
                more = conditions if added is True else self._once(conditions | {added})
                thread = Thread(jump.target, more)
                if thread not in seen:
                    seen.add(thread)
                    stack.append(thread)
        self.work += sum(len(thread.conditions) for thread in seen)
        return self._once(frozenset(_weakest(seen)))

    def _once(self, found: _Set) -> _Set:
        return cast(_Set, self._known.setdefault(found, found))

    def _condition(
        self, jump: _Jump, behind: list[frozenset[Thread]], at_beginning: bool
    ) -> Condition | bool:
        """The condition of a jump, or whether it is fulfilled if that is known already."""
        look = jump.condition
        if look is None:
            return True
        if isinstance(look, Edge):
            return at_beginning
        if look.behind is not None:
            return self._holds(behind[look.behind], look.last) != jump.negated
        first = [Thread(look.first, _NONE)]
        threads = self._closed(first, behind, at_beginning=at_beginning)
        return _simplified(Condition(jump.negated, threads, look.last))


def _all(situation: Situation) -> Iterator[frozenset[Thread]]:
    """All sets of threads, with those in conditions."""
    waiting = [situation.threads, *situation.behind]
    while waiting:
        threads = waiting.pop()
        yield threads
        waiting += (each.threads for thread in threads for each in thread.conditions)


def _simplified(condition: Condition) -> Condition | bool:
    """Whether a condition holds, if that no longer depends on the text."""
    if Thread(condition.last, _NONE) in condition.threads:
        return not condition.negated
    return condition if condition.threads else condition.negated


def _weakest(threads: set[Thread]) -> Iterator[Thread]:
    """The threads without those that another one in the same state makes superfluous."""
    if not any(thread.conditions for thread in threads):
        yield from threads
        return
    of_states: dict[int, list[frozenset[Condition]]] = {}
    for thread in threads:
        of_states.setdefault(thread.state, []).append(thread.conditions)
    for state, each in of_states.items():
        for conditions in each:
            if not any(other < conditions for other in each):
                yield Thread(state, conditions)


@lru_cache(maxsize=256)
def network(pattern: str) -> Network:
    """The network of a pattern. Raises UnreadablePatternError, which names the pattern and what to
    change in it."""
    try:
        return build(read(pattern))
    except (PatternSyntaxError, UnreadablePatternError) as error:
        raise UnreadablePatternError(f"{shown(pattern)}: {error}") from error


def build(node: Node) -> Network:
    """Raises UnreadablePatternError."""
    return _Builder().build(node)


class _Builder:
    def __init__(self) -> None:
        self._made = Network()

    def build(self, node: Node) -> Network:
        made = self._made
        made.first, made.last = self._loop(), self._loop()
        self._connect(node, made.first, made.last)
        return made

    def _add(self) -> int:
        made = self._made
        if len(made.steps) >= MAX_NODES:
            raise UnreadablePatternError("it is too large; give a shorter one")
        made.steps.append([])
        made.jumps.append([])
        return len(made.steps) - 1

    def _loop(self) -> int:
        """A state that any text leads back to."""
        state = self._add()
        self._step(ANYTHING, state, state)
        return state

    def _step(self, atom: Characters, start: int, end: int) -> None:
        if atom.properties:
            named = ", ".join(atom.properties)
            raise UnreadablePatternError(
                f"it has {named}; write a general category, as in \\p{{Lu}}"
            )
        starts = [low for low, _ in atom.ranges]
        self._made.steps[start].append((atom.ranges, starts, end))

    def _jump(self, start: int, end: int) -> None:
        self._made.jumps[start].append(_Jump(end))

    def _connect(self, node: Node, start: int, end: int) -> None:
        match node:
            case Characters():
                self._step(node, start, end)
            case Sequence(items):
                self._jump(self._chain(items, start), end)
            case Choice(options):
                for option in options:
                    self._connect(option, start, end)
            case Repeat():
                self._repeat(node, start, end)
            case Edge():
                self._made.jumps[start].append(self._edge(node, end))
            case Look(item, ahead, negated):
                look = self._look(item) if ahead else self._look_behind(item)
                self._made.jumps[start].append(_Jump(end, look, negated))

    def _edge(self, edge: Edge, end: int) -> _Jump:
        if edge is Edge.BEGINNING:
            return _Jump(end, edge)
        if self._made.end is None:
            self._made.end = self._look(ANYTHING)
        return _Jump(end, self._made.end, negated=True)

    def _look(self, item: Node) -> _Look:
        look = _Look(self._add(), self._loop())
        self._connect(item, look.first, look.last)
        return look

    def _look_behind(self, item: Node) -> _Look:
        if any(each is Edge.END or (isinstance(each, Look) and each.ahead) for each in walk(item)):
            raise UnreadablePatternError("it looks ahead inside a look-behind; take that out")
        look = _Look(self._loop(), self._add())
        self._connect(item, look.first, look.last)
        look.behind = len(self._made.behind)
        self._made.behind.append(look)
        return look

    def _chain(self, items: Iterable[Node], start: int) -> int:
        """The state after some items."""
        for item in items:
            there = self._add()
            self._connect(item, start, there)
            start = there
        return start

    def _repeat(self, node: Repeat, start: int, end: int) -> None:
        start = self._chain([node.item] * node.low, start)
        if node.high is None:
            loop, after = self._add(), self._add()
            self._jump(start, loop)
            self._connect(node.item, loop, after)
            self._jump(after, loop)
            self._jump(loop, end)
            return
        self._jump(start, end)
        for _ in range(node.high - node.low):
            there = self._add()
            self._connect(node.item, start, there)
            self._jump(there, end)
            start = there
