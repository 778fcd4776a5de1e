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
from completions.grammars.messages import format_value
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


_ThreadSet = TypeVar("_ThreadSet", frozenset[Thread], frozenset[Condition])
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
        """Return whether the pattern is found in the text."""
        situation = self.start()
        for character in text:
            situation = self.step(situation, ord(character))
        return self.is_final(situation)

    def start(self) -> Situation:
        behind: list[frozenset[Thread]] = []
        for look in self.behind:
            behind.append(self._close([Thread(look.first, _NONE)], behind, at_beginning=True))
        threads = self._close([Thread(self.first, _NONE)], behind, at_beginning=True)
        return self._make_situation(threads, behind)

    def step(self, situation: Situation, point: int) -> Situation:
        """Return the situation after one more character."""
        behind: list[frozenset[Thread]] = []
        for threads in situation.behind:
            behind.append(self._step_threads(threads, point, behind))
        return self._make_situation(self._step_threads(situation.threads, point, behind), behind)

    def is_final(self, situation: Situation) -> bool:
        return self._is_satisfied(situation.threads, self.last)

    def list_cuts(self, situation: Situation) -> list[int]:
        """Return the code points at which another step may become possible; the first is 0."""
        edges = {0}
        for threads in _iter_thread_sets(situation):
            for thread in threads:
                for ranges, _, _ in self.steps[thread.state]:
                    for low, high in ranges:
                        edges.update((low, high + 1))
        return sorted(edge for edge in edges if edge <= code_points.ALL[-1][1])

    def _make_situation(
        self, threads: frozenset[Thread], behind: list[frozenset[Thread]]
    ) -> Situation:
        if Thread(self.last, _NONE) in threads:  # nothing that follows can change that
            return Situation(frozenset((Thread(self.last, _NONE),)))
        return Situation(threads, tuple(behind))

    def _is_satisfied(self, threads: Iterable[Thread], last: int) -> bool:
        """Return whether a match is complete at the end of the text."""
        return any(
            thread.state == last
            and all(
                self._is_satisfied(each.threads, each.last) != each.negated
                for each in thread.conditions
            )
            for thread in threads
        )

    def _step_threads(
        self, threads: Iterable[Thread], point: int, behind: list[frozenset[Thread]]
    ) -> frozenset[Thread]:
        reached = []
        cached: dict[Condition, Condition | bool] = {}
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
                if each not in cached:
                    advanced = self._step_threads(each.threads, point, behind)
                    cached[each] = _simplify(each._replace(threads=advanced))
                self.work += 1
                moved.add(cached[each])
            if False not in moved:
                left = self._intern(
                    frozenset(each for each in moved if isinstance(each, Condition))
                )
                reached += [Thread(target, left) for target in targets]
        return self._close(reached, behind)

    def _close(
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
                added = self._make_condition(jump, behind, at_beginning)
                if added is False:
                    continue
                more = conditions if added is True else self._intern(conditions | {added})
                thread = Thread(jump.target, more)
                if thread not in seen:
                    seen.add(thread)
                    stack.append(thread)
        self.work += sum(len(thread.conditions) for thread in seen)
        return self._intern(frozenset(_iter_weakest(seen)))

    def _intern(self, threads: _ThreadSet) -> _ThreadSet:
        return cast(_ThreadSet, self._known.setdefault(threads, threads))

    def _make_condition(
        self, jump: _Jump, behind: list[frozenset[Thread]], at_beginning: bool
    ) -> Condition | bool:
        """Return the condition of a jump, or whether it is fulfilled if that is known already."""
        look = jump.condition
        if look is None:
            return True
        if isinstance(look, Edge):
            return at_beginning
        if look.behind is not None:
            return self._is_satisfied(behind[look.behind], look.last) != jump.negated
        first = [Thread(look.first, _NONE)]
        threads = self._close(first, behind, at_beginning=at_beginning)
        return _simplify(Condition(jump.negated, threads, look.last))


def _iter_thread_sets(situation: Situation) -> Iterator[frozenset[Thread]]:
    """Yield all sets of threads, with those in conditions."""
    waiting = [situation.threads, *situation.behind]
    while waiting:
        threads = waiting.pop()
        yield threads
        waiting += (each.threads for thread in threads for each in thread.conditions)


def _simplify(condition: Condition) -> Condition | bool:
    """Return whether a condition holds, if that no longer depends on the text."""
    if Thread(condition.last, _NONE) in condition.threads:
        return not condition.negated
    return condition if condition.threads else condition.negated


def _iter_weakest(threads: set[Thread]) -> Iterator[Thread]:
    """Yield the threads without those that another one in the same state makes superfluous."""
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
def build_network(pattern: str) -> Network:
    """Return the network of a pattern. Raises UnreadablePatternError, which names the pattern and
    what to change in it."""
    try:
        return build(read(pattern))
    except (PatternSyntaxError, UnreadablePatternError) as error:
        raise UnreadablePatternError(f"{format_value(pattern)}: {error}") from error


def build(node: Node) -> Network:
    """Raise UnreadablePatternError."""
    return _Builder().build(node)


class _Builder:
    def __init__(self) -> None:
        self._made = Network()

    def build(self, node: Node) -> Network:
        network = self._made
        network.first, network.last = self._add_loop(), self._add_loop()
        self._connect(node, network.first, network.last)
        return network

    def _add(self) -> int:
        network = self._made
        if len(network.steps) >= MAX_NODES:
            raise UnreadablePatternError("it is too large; give a shorter one")
        network.steps.append([])
        network.jumps.append([])
        return len(network.steps) - 1

    def _add_loop(self) -> int:
        """Return a state that any text leads back to."""
        state = self._add()
        self._add_step(ANYTHING, state, state)
        return state

    def _add_step(self, atom: Characters, start: int, end: int) -> None:
        if atom.properties:
            names = ", ".join(atom.properties)
            raise UnreadablePatternError(
                f"it has {names}; write a general category, as in \\p{{Lu}}"
            )
        starts = [low for low, _ in atom.ranges]
        self._made.steps[start].append((atom.ranges, starts, end))

    def _add_jump(self, start: int, end: int) -> None:
        self._made.jumps[start].append(_Jump(end))

    def _connect(self, node: Node, start: int, end: int) -> None:
        match node:
            case Characters():
                self._add_step(node, start, end)
            case Sequence(items):
                self._add_jump(self._add_chain(items, start), end)
            case Choice(options):
                for option in options:
                    self._connect(option, start, end)
            case Repeat():
                self._add_repeat(node, start, end)
            case Edge():
                self._made.jumps[start].append(self._add_edge(node, end))
            case Look(item, ahead, negated):
                look = self._add_look(item) if ahead else self._add_look_behind(item)
                self._made.jumps[start].append(_Jump(end, look, negated))

    def _add_edge(self, edge: Edge, end: int) -> _Jump:
        if edge is Edge.BEGINNING:
            return _Jump(end, edge)
        if self._made.end is None:
            self._made.end = self._add_look(ANYTHING)
        return _Jump(end, self._made.end, negated=True)

    def _add_look(self, item: Node) -> _Look:
        look = _Look(self._add(), self._add_loop())
        self._connect(item, look.first, look.last)
        return look

    def _add_look_behind(self, item: Node) -> _Look:
        if any(each is Edge.END or (isinstance(each, Look) and each.ahead) for each in walk(item)):
            raise UnreadablePatternError("it looks ahead inside a look-behind; take that out")
        look = _Look(self._add_loop(), self._add())
        self._connect(item, look.first, look.last)
        look.behind = len(self._made.behind)
        self._made.behind.append(look)
        return look

    def _add_chain(self, items: Iterable[Node], start: int) -> int:
        """Return the state after some items."""
        for item in items:
            there = self._add()
            self._connect(item, start, there)
            start = there
        return start

    def _add_repeat(self, node: Repeat, start: int, end: int) -> None:
        start = self._add_chain([node.item] * node.low, start)
        if node.high is None:
            loop, after = self._add(), self._add()
            self._add_jump(start, loop)
            self._connect(node.item, loop, after)
            self._add_jump(after, loop)
            self._add_jump(loop, end)
            return
        self._add_jump(start, end)
        for _ in range(node.high - node.low):
            there = self._add()
            self._connect(node.item, start, there)
            self._add_jump(there, end)
            start = there
