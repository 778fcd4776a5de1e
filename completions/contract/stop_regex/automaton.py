"""Stop regexes, found in a text as it arrives, in time linear in its length.

A backtracking engine such as Python's ``re`` can take exponential time on one token. Here a pattern
becomes a nondeterministic automaton (Thompson, 1968), which follows every possible start of a match
at once. Sets of states are cached, as in RE2, and each state keeps the earliest start that leads to
it (a tagged automaton with one tag; Laurikari, 2000). After every character the search knows if a
match ends there, where the leftmost one began, and how much text may still be part of a match.
"""

from collections.abc import Container, Iterable
from functools import lru_cache
from typing import NamedTuple, Self

from completions.contract.stop_regex.syntax import (
    Alternation,
    Chars,
    Concatenation,
    End,
    Node,
    Predicate,
    RegexError,
    Repeat,
    Start,
    parse,
)

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
        nfa = _Nfa(parse(pattern))
        self._nfa = nfa
        self.size = len(nfa.edges)
        self._known: dict[tuple[int, ...], _States] = {}
        self.cached = 0
        """The size of the cache, in states."""
        at_start, nullable = nfa.find_closure([nfa.first], of_text=True, of_line=True)
        if nullable:
            raise RegexError(f"{pattern!r} matches the empty text; require at least one character")
        self.start = self._intern(tuple(at_start))
        within, _ = nfa.find_closure([nfa.first], of_text=False, of_line=False)
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
        for source, number in enumerate(states.numbers):
            matches, following = self._nfa.edges[number]
            if not matches(char):
                continue
            reached, accepts = self._nfa.find_closure(following, False, char == "\n", numbers)
            numbers.update(dict.fromkeys(reached))
            sources += [source] * len(reached)
            if accepts and accepted < 0:
                accepted = source
        fresh, _ = self._nfa.find_closure([self._nfa.first], False, char == "\n", numbers)
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


_ACCEPT = -1


class _Nfa:
    """Character states have numbers from 0; states that consume no character have negative ones.

    ``edges[i]`` is what state ``i`` matches and what follows it. ``-1`` accepts. The other
    negative numbers index ``_forks``: the states reached without a character, some of them only
    at the start of the text or of a line.
    """

    def __init__(self, tree: Node) -> None:
        self.edges: list[tuple[Predicate, list[int]]] = []
        self._forks: list[tuple[list[int], Start | None]] = [([], None), ([], None)]
        self.first = self._build(tree, _ACCEPT)

    def find_closure(
        self, states: Iterable[int], of_text: bool, of_line: bool, without: Container[int] = ()
    ) -> tuple[list[int], bool]:
        """Return the character states reachable without a character, except those in ``without``,
        and whether the end of the pattern is reachable."""
        seen: set[int] = set()
        reached = []
        pending = list(states)
        while pending:
            state = pending.pop()
            if state in seen:
                continue
            seen.add(state)
            if state >= 0:
                if state not in without:
                    reached.append(state)
            elif state != _ACCEPT:
                following, start = self._forks[-state]
                if start is None or of_text or (start.of_line and of_line):
                    pending += following
        return sorted(reached), _ACCEPT in seen

    def _build(self, node: Node, following: int) -> int:
        """Return the state that matches ``node`` and then continues with ``following``."""
        if isinstance(node, Chars):
            if len(self.edges) == MAX_STATES:
                raise RegexError(
                    f"the pattern is too large: more than {MAX_STATES} states; shorten it"
                )
            self.edges.append((node.matches, [following]))
            return len(self.edges) - 1
        if isinstance(node, Start):
            return self._add_fork([following], node)
        if isinstance(node, End):
            return following  # the parser ensures that only the end follows
        if isinstance(node, Concatenation):
            for part in reversed(node.parts):
                following = self._build(part, following)
            return following
        if isinstance(node, Alternation):
            return self._add_fork([self._build(option, following) for option in node.options])
        return self._build_repeat(node, following)

    def _build_repeat(self, node: Repeat, following: int) -> int:
        if node.maximum is None:
            again = self._add_fork([])
            body = self._build(node.node, again)
            self._forks[-again][0].extend((body, following))
            following = again
        else:
            after = following
            for _ in range(node.maximum - node.minimum):
                following = self._add_fork([self._build(node.node, following), after])
        for _ in range(node.minimum):
            body = self._build(node.node, following)
            if body == following:
                break  # repeating an empty body adds nothing
            following = body
        return following

    def _add_fork(self, following: list[int], start: Start | None = None) -> int:
        if len(self._forks) > 4 * MAX_STATES:
            raise RegexError(f"the pattern is too large: more than {MAX_STATES} states; shorten it")
        self._forks.append((following, start))
        return 1 - len(self._forks)
