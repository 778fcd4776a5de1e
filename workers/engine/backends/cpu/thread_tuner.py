"""Chooses a step's thread count: all cores, or all but one while other processes need it."""

from collections import deque
from enum import Enum, auto
from statistics import median

_WINDOW = 6
"""How many steps a compared median covers: one interrupted step proves nothing about threads."""

_ALIKE = 1.125
"""Steps are comparable if neither has more than this many times the tokens of the other."""

_GAIN = 0.92
"""A trial wins if it takes at most this share of the time of the steps before and after it."""

_DISTURBED = 1.3
"""Steps that take this many times as long as usual call for a trial at once."""

_PATIENCE = (32, 512)
"""Steps between trials: after a trial that changed the thread count, and at most."""


class _Phase(Enum):
    """What the current steps are for. Only those of a trial run on the other thread count."""

    USUAL = auto()
    TRIAL = auto()
    CHECK = auto()
    """After a trial that seems to win: on the previous thread count again."""


class ThreadTuner:
    """Tries the other thread count for a few steps now and then and keeps the faster.

    The threads of a parallel loop wait for the slowest. Where other processes want the cores, one
    thread may be faster: with SmolLM2-135M on two cores of an AMD EPYC at a load of 9, a forward
    pass of 1 and 16 rows took 53 and 84 ms on two threads, 34 and 67 ms on one. Undisturbed, it
    takes 8 and 17 ms on two, 13 and 24 ms on one.

    A machine's speed also changes for minutes at once, on any number of threads. So a trial wins
    only if the steps after it, on the previous thread count, are as slow as those before it.
    A trial costs next to nothing; each failed trial doubles the wait for the next.
    """

    def __init__(self, num_threads: int) -> None:
        self._options = (num_threads, max(1, num_threads - 1))
        self._current = 0
        self._phase = _Phase.USUAL
        self._num_tokens = 0
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._before = 0.0
        self._tried = 0.0
        self._usual: float | None = None
        self._patience = _PATIENCE[0]
        self._since_trial = 0

    @property
    def num_threads(self) -> int:
        """The number to use for the next step."""
        return self._options[self._current ^ (self._phase is _Phase.TRIAL)]

    def record(self, num_tokens: int, seconds: float) -> None:
        """Record the time of a step that ran on :attr:`num_threads`."""
        self._since_trial += 1
        few, many = sorted((num_tokens, self._num_tokens))
        if many > _ALIKE * few:
            self._num_tokens, self._phase, self._usual = num_tokens, _Phase.USUAL, None
            self._seconds.clear()
        self._seconds.append(seconds)
        if len(self._seconds) == _WINDOW:
            self._decide(median(self._seconds))

    def _decide(self, seconds: float) -> None:
        """Go on to the next phase, given the usual time of the latest steps."""
        match self._phase:
            case _Phase.USUAL if self._since_trial >= self._patience or self._is_slower(seconds):
                self._before = seconds
                self._begin(_Phase.TRIAL)
            case _Phase.USUAL if self._usual is None:
                self._usual = seconds
            case _Phase.TRIAL if seconds <= _GAIN * self._before:
                self._tried = seconds
                self._begin(_Phase.CHECK)
            case _Phase.TRIAL:
                self._end_trial(won=False, usual=self._before)
            case _Phase.CHECK:
                won = self._tried <= _GAIN * seconds
                self._end_trial(won, usual=self._tried if won else seconds)

    def _is_slower(self, seconds: float) -> bool:
        return self._usual is not None and seconds > _DISTURBED * self._usual

    def _begin(self, phase: _Phase) -> None:
        self._phase = phase
        self._seconds.clear()

    def _end_trial(self, won: bool, usual: float) -> None:
        self._current ^= won
        self._patience = _PATIENCE[0] if won else min(2 * self._patience, _PATIENCE[1])
        self._usual = usual
        self._since_trial = 0
        self._begin(_Phase.USUAL)
