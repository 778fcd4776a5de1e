"""Finds stop strings and stop regexes in a text that arrives in pieces."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

from completions.contract.stop_regex.automaton import RegexSearch


class TextSearch(Protocol):
    """The search for one stop in one text."""

    @property
    def name(self) -> str:
        """The stop string, or the pattern."""

    @property
    def num_held(self) -> int:
        """How many of the last characters may belong to a match that has not ended."""

    def step(self, char: str) -> int:
        """Add a character. Return the length of the match that ends with it, or 0."""

    def restart(self) -> None:
        """Forget the text so far, without taking the next character for the first one."""

    def copy(self) -> Self: ...


class StopString:
    """A stop string as an automaton (Knuth, Morris and Pratt, 1977).

    The state is the length of the longest suffix of the text so far that begins the string.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = [0] * (len(text) + 1)
        for length in range(1, len(text)):
            self._borders[length + 1] = self.step(self._borders[length], text[length])

    @property
    def restart(self) -> int:
        """The state after a complete match."""
        return self._borders[-1]

    def step(self, state: int, char: str) -> int:
        """Return the state after one more character; ``len(text)`` means that the string is
        complete."""
        while state and self.text[state] != char:
            state = self._borders[state]
        return state + (self.text[state] == char)


@lru_cache(maxsize=1024)
def compile_string(text: str) -> StopString:
    return StopString(text)


class StringSearch:
    """The progress of the search for one stop string in one text."""

    def __init__(self, stop: StopString) -> None:
        self._stop = stop
        self.num_held = 0

    @property
    def name(self) -> str:
        return self._stop.text

    def step(self, char: str) -> int:
        state = self._stop.step(self.num_held, char)
        complete = state == len(self._stop.text)
        self.num_held = self._stop.restart if complete else state
        return state if complete else 0

    def restart(self) -> None:
        self.num_held = 0

    def copy(self) -> Self:
        clone = type(self)(self._stop)
        clone.num_held = self.num_held
        return clone


class TextStop(NamedTuple):
    """What ended a text: the stop string, or the pattern and the text that it matched."""

    name: str
    text: str | None = None


class StopText:
    """Finds the first stop in a text that arrives in pieces of any size.

    The first stop is the one whose last character comes first. If several end at one character,
    a string wins over a regex, the longest string over others, and the earlier regex over later
    ones. With ``trim``, the text ends before the stop, so it holds back exactly what may become
    part of a stop. Without it, the text ends after the stop, and nothing is held back.
    """

    def __init__(
        self, strings: Sequence[StringSearch], regexes: Sequence[RegexSearch], trim: bool = True
    ) -> None:
        self._strings, self._regexes = strings, regexes
        self._trim = trim
        self._tail = ""

    def push(self, text: str, armed: bool = True) -> tuple[str, TextStop | None]:
        """Add text. Return what may be shown now and the stop that ended it, or None.

        While not ``armed`` a completed stop counts as ordinary text.
        """
        pending = self._tail + text
        released = self._num_released
        for end, char in enumerate(text, len(self._tail) + 1):
            search, length = self._step(char)
            if search is not None and armed:
                start = end - length
                stop = TextStop(search.name)
                if isinstance(search, RegexSearch):
                    stop = TextStop(search.name, pending[start:end])
                self._tail = ""
                return pending[released : start if self._trim else end], stop
        start = len(pending) - self._num_held
        self._tail = pending[start:]
        return pending[released : start if self._trim else None], None

    def flush(self) -> str:
        """Return the text still held back once no more text follows."""
        held, self._tail = self._tail[self._num_released :], ""
        return held

    def finish(self, armed: bool = True) -> tuple[str, TextStop | None]:
        """Return the text still held back, and the stop that it completes: here always none."""
        return self.flush(), None

    def restart(self) -> str:
        """Return the text held back. No match extends beyond this place."""
        held = self.flush()
        searches: list[TextSearch] = [*self._strings, *self._regexes]
        for search in searches:
            search.restart()
        return held

    def copy(self) -> Self:
        clone = type(self)(
            [search.copy() for search in self._strings],
            [search.copy() for search in self._regexes],
            self._trim,
        )
        clone._tail = self._tail
        return clone

    @property
    def _num_released(self) -> int:
        """How many characters of the tail were shown already. They may still become part of a
        stop."""
        return 0 if self._trim else len(self._tail)

    @property
    def _num_held(self) -> int:
        searches: list[TextSearch] = [*self._strings, *self._regexes]
        return max((search.num_held for search in searches), default=0)

    def _step(self, char: str) -> tuple[TextSearch | None, int]:
        first: TextSearch | None = None
        length = 0
        for string in self._strings:
            if (size := string.step(char)) > length:
                first, length = string, size
        for regex in self._regexes:
            if (size := regex.step(char)) and first is None:
                first, length = regex, size
        return first, length
