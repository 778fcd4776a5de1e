"""Stop regexes, found in a text as it arrives, in time linear in its length.

A backtracking engine such as Python's ``re`` can take exponential time on one token. Here a pattern
becomes a nondeterministic automaton (Thompson, 1968), which follows every possible start of a match
at once. Sets of states are cached, as in RE2, and each state keeps the earliest start that leads to
it (a tagged automaton with one tag; Laurikari, 2000). After every character the search knows if a
match ends there, where the leftmost one began, and how much text may still be part of a match.
"""

from collections.abc import Container, Iterable
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple, Self

from completions.contract.stop_regex.syntax import Predicate, RegexError, make_predicate, parse
from completions.regular.nfa import RegexNfa, TooLargeError
from completions.regular.syntax import Characters, Edge, Look, Node

MAX_PATTERNS = 32
"""The most patterns in one request."""
MAX_PATTERN_BYTES = 256
"""The most UTF-8 bytes in one pattern."""
MAX_STATES = 1000
"""The most character states of one pattern, with bounded repetitions expanded."""
MAX_TOTAL_STATES = MAX_PATTERNS * MAX_PATTERN_BYTES
"""The most states of all patterns of a request: enough for plain text in every pattern."""

_CACHED_STATES = 20_000
"""The most states in a pattern's cache, which is emptied when it is full."""


class _Step(NamedTuple):
    """The effect of one character on a set of states.

    ``sources[i]`` is the old state that the ``i``-th new one comes from. New states without a
    source start a match after this character. ``accepted`` is the old state that completes a match,
    or -1.
    """

    target: "_States"
    sources: tuple[int, ...]
    accepted: int


class _States:
    """A set of states, oldest start first, and the steps from it computed so far."""

    __slots__ = ("numbers", "steps")

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self.steps: dict[str, _Step] = {}


class StopRegex:
    """One pattern. Raises RegexError if it is malformed, unsupported, too large, or matches the
    empty text, which every text contains."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            nfa = _Nfa(parse(pattern))
        except TooLargeError as error:
            message = f"the pattern is too large: more than {MAX_STATES} states; shorten it"
            raise RegexError(message) from error
        self._nfa = nfa
        self.size = nfa.size
        self._known: dict[tuple[int, ...], _States] = {}
        self.cached = 0
        """The size of the cache, in states."""
        at_start, nullable = nfa.reach([_START], _At.TEXT_START)
        if nullable:
            raise RegexError(f"{pattern!r} matches the empty text; require at least one character")
        self.start = self._intern(tuple(at_start))
        within, _ = nfa.reach([_START], _At.WITHIN_LINE)
        self.within = self._intern(tuple(within))
        """The start of a search within a text."""

    def step(self, states: _States, char: str) -> _Step:
        if (step := states.steps.get(char)) is not None:
            return step
        if self.cached > _CACHED_STATES:
            self._known, self.cached = {}, 0
            self.start = self._intern(self.start.numbers)
            self.within = self._intern(self.within.numbers)
        step = states.steps[char] = self._compute(states, char)
        self.cached += len(step.sources) + 1
        return step

    def _compute(self, states: _States, char: str) -> _Step:
        numbers: dict[int, None] = {}
        sources: list[int] = []
        accepted = -1
        at = _At.LINE_START if char == "\n" else _At.WITHIN_LINE
        for source, number in enumerate(states.numbers):
            following = [target for matches, target in self._nfa.steps[number] if matches(char)]
            if not following:
                continue
            reached, accepts = self._nfa.reach(following, at, numbers)
            numbers.update(dict.fromkeys(reached))
            sources += [source] * len(reached)
            if accepts and accepted < 0:
                accepted = source
        fresh, _ = self._nfa.reach([_START], at, numbers)
        target = self._intern((*numbers, *fresh))
        return _Step(target, tuple(sources), accepted)

    def _intern(self, numbers: tuple[int, ...]) -> _States:
        states = self._known.get(numbers)
        if states is None:
            states = self._known[numbers] = _States(numbers)
            self.cached += len(numbers) + 1
        return states


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> StopRegex:
    """Return the automaton of a pattern. Raises RegexError."""
    return StopRegex(pattern)


def compile_all(patterns: Iterable[str]) -> list[StopRegex]:
    """Return the compiled patterns of one request. Raises RegexError, also if their total is too
    large."""
    regexes = [compile_regex(pattern) for pattern in patterns]
    if sum(regex.size for regex in regexes) > MAX_TOTAL_STATES:
        raise RegexError(
            f"the patterns are too large: more than {MAX_TOTAL_STATES} states; shorten them"
        )
    return regexes


class RegexSearch:
    """The search for one pattern in one text."""

    def __init__(self, regex: StopRegex) -> None:
        self.regex = regex
        self._states = regex.start
        self._starts = [0] * len(regex.start.numbers)
        self._position = 0

    @property
    def name(self) -> str:
        return self.regex.pattern

    @property
    def num_held(self) -> int:
        """The number of trailing characters that may belong to an unfinished match."""
        return self._position - self._starts[0] if self._starts else 0

    def step(self, char: str) -> int:
        """Add a character. Returns the length of the leftmost match that ends with it, or 0."""
        step = self.regex.step(self._states, char)
        self._position += 1
        starts = self._starts
        begun = self._position - starts[step.accepted] if step.accepted >= 0 else 0
        self._starts = [starts[source] for source in step.sources]
        self._starts += [self._position] * (len(step.target.numbers) - len(step.sources))
        self._states = step.target
        return begun

    def restart(self) -> None:
        """Forget the text so far, without taking the next character for the first one."""
        self._states = self.regex.within
        self._starts = [self._position] * len(self._states.numbers)

    def copy(self) -> Self:
        clone = type(self)(self.regex)
        clone._states, clone._starts = self._states, self._starts
        clone._position = self._position
        return clone


_START, _ACCEPT = 0, 1


class _At(Enum):
    """What stands before a position."""

    TEXT_START = auto()
    LINE_START = auto()
    WITHIN_LINE = auto()


class _Nfa(RegexNfa[Predicate, _At]):
    """The automaton of a pattern. Where a jump has a condition, the position must be the start of
    the text, or that of a line. Raises TooLargeError."""

    def __init__(self, tree: Node) -> None:
        super().__init__(4 * MAX_STATES)
        self.size = 0
        """How many characters the pattern has, with repetitions written out."""
        self.add_state()
        self.add_state()
        self.connect(tree, _START, _ACCEPT)

    def add_step(self, state: int, label: Predicate, to: int | None = None) -> int:
        if self.size == MAX_STATES:
            raise TooLargeError
        self.size += 1
        return super().add_step(state, label, to)

    def make_label(self, atom: Characters) -> Predicate:
        return make_predicate(atom)

    def make_condition(self, node: Edge | Look) -> _At | None:
        if node is Edge.END:
            return None  # the parser ensures that only the end follows
        return _At.TEXT_START if node is Edge.BEGINNING else _At.LINE_START

    def reach(
        self, states: Iterable[int], at: _At, without: Container[int] = ()
    ) -> tuple[list[int], bool]:
        """Return the states reached without a character that a character may leave, except those
        in ``without``, and whether the end of the pattern is reached."""
        closure = self.find_closure(states, lambda condition: condition is at)
        reached = [each for each in closure if self.steps[each] and each not in without]
        return sorted(reached), _ACCEPT in closure
