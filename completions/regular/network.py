"""A pattern as a network of states (Thompson's construction), with look-around.

A thread is a state that the text so far leads to, with conditions on the rest of the text: those of
the look-aheads on its way. Each condition is a set of threads of its own, so that all of them
advance together, character by character. A look-behind is decided at once: threads of its own have
followed the text since the beginning.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar, cast

from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.nfa import PatternError, RegexNfa, TooLargeError
from completions.regular.syntax import ANYTHING, Characters, Edge, Look, Node, walk

MAX_STATES = 3_000


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


class _Look(NamedTuple):
    first: int
    last: int
    behind: int | None = None
    """The index among the look-behinds."""


class _Test(NamedTuple):
    """The condition of a jump: the beginning of the text, or look-around."""

    look: _Look | None
    negated: bool = False


_ThreadSet = TypeVar("_ThreadSet", frozenset[Thread], frozenset[Condition])
_NONE: frozenset[Condition] = frozenset()


class Network(RegexNfa[Ranges, _Test]):
    """Network of a pattern. Raises UnreadablePatternError."""

    def __init__(self, node: Node) -> None:
        super().__init__(MAX_STATES)
        self.behind: list[_Look] = []
        """Each comes after those inside it."""
        self.work = 0
        """How many threads and conditions were followed so far."""
        self._end: _Look | None = None
        """One more character."""
        self._known: dict[object, object] = {}
        """Each set of conditions or threads once, so that equal ones are compared by identity."""
        try:
            self.first, self.last = self._add_loop(), self._add_loop()
            self.connect(node, self.first, self.last)
        except TooLargeError as error:
            raise UnreadablePatternError("it is too large; give a shorter one") from error

    def _add_loop(self) -> int:
        """Return a state that any text leads back to."""
        state = self.add_state()
        return self.add_step(state, ANYTHING.ranges, state)

    def make_label(self, atom: Characters) -> Ranges:
        if atom.properties:
            names = ", ".join(atom.properties)
            raise UnreadablePatternError(
                f"it has {names}; write a general category, as in \\p{{Lu}}"
            )
        return atom.ranges

    def make_condition(self, node: Edge | Look) -> _Test:
        match node:
            case Look(item, ahead, negated):
                return _Test(self._add_look(item) if ahead else self._add_behind(item), negated)
            case Edge.BEGINNING:
                return _Test(None)
            case _:
                self._end = self._end or self._add_look(ANYTHING)
                return _Test(self._end, negated=True)

    def _add_look(self, item: Node) -> _Look:
        look = _Look(self.add_state(), self._add_loop())
        self.connect(item, look.first, look.last)
        return look

    def _add_behind(self, item: Node) -> _Look:
        if any(each is Edge.END or (isinstance(each, Look) and each.ahead) for each in walk(item)):
            raise UnreadablePatternError("it looks ahead inside a look-behind; take that out")
        first, last = self._add_loop(), self.add_state()
        self.connect(item, first, last)
        self.behind.append(_Look(first, last, len(self.behind)))
        return self.behind[-1]

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
                for ranges, _ in self.steps[thread.state]:
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
                for ranges, target in self.steps[state]
                if code_points.contains(ranges, point)
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
            for target, test in self.jumps[state]:
                added = test is None or self._evaluate(test, behind, at_beginning)
                if added is False:
                    continue
                more = conditions if added is True else self._intern(conditions | {added})
                thread = Thread(target, more)
                if thread not in seen:
                    seen.add(thread)
                    stack.append(thread)
        self.work += sum(len(thread.conditions) for thread in seen)
        return self._intern(frozenset(_iter_weakest(seen)))

    def _intern(self, threads: _ThreadSet) -> _ThreadSet:
        return cast(_ThreadSet, self._known.setdefault(threads, threads))

    def _evaluate(
        self, test: _Test, behind: list[frozenset[Thread]], at_beginning: bool
    ) -> Condition | bool:
        """Return the condition of a jump, or whether it is fulfilled if that is known already."""
        look = test.look
        if look is None:
            return at_beginning
        if look.behind is not None:
            return self._is_satisfied(behind[look.behind], look.last) != test.negated
        first = [Thread(look.first, _NONE)]
        threads = self._close(first, behind, at_beginning=at_beginning)
        return _simplify(Condition(test.negated, threads, look.last))


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
