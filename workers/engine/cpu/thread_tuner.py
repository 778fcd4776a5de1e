"""Chooses a step's thread count: all cores, or all but one while other processes need it."""

from collections import deque
from statistics import median

_WINDOW = 6
"""How many steps a compared median covers: one interrupted step proves nothing about threads."""

_ALIKE = 1.125
"""Steps are comparable if neither has more than this many times the tokens of the other."""

_GAIN = 0.92
"""A trial wins if its steps take at most this share of the time."""

_DISTURBED = 1.3
"""Steps that take this many times as long as usual call for a trial at once."""

_PATIENCE = (32, 512)
"""Steps between trials: after a trial that changed the thread count, and at most."""


class ThreadTuner:
    """Tries the other thread count for a few steps now and then and keeps the faster.

    The threads of a parallel loop wait for the slowest. Where other processes want the cores, one
    thread may be faster: with SmolLM2-135M on two cores of an AMD EPYC at a load of 9, a forward
    pass of 1 and 16 rows took 53 and 84 ms on two threads, 34 and 67 ms on one. Undisturbed, it
    takes 8 and 17 ms on two, 13 and 24 ms on one.
    A trial costs next to nothing; each failed trial doubles the wait for the next.
    """

    def __init__(self, num_threads: int) -> None:
        self._options = (num_threads, max(1, num_threads - 1))
        self._current = 0
        self._trying = False
        self._num_tokens = 0
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._to_beat = 0.0
        self._usual: float | None = None
        self._patience = _PATIENCE[0]
        self._since_trial = 0

    @property
    def num_threads(self) -> int:
        """The number to use for the next step."""
        return self._options[self._current ^ self._trying]

    def record(self, num_tokens: int, seconds: float) -> None:
        """Record the time of a step that ran on :attr:`num_threads`."""
        self._since_trial += 1
        few, many = sorted((num_tokens, self._num_tokens))
        if many > _ALIKE * few:
            self._num_tokens, self._trying, self._usual = num_tokens, False, None
            self._seconds.clear()
        self._seconds.append(seconds)
        if len(self._seconds) < _WINDOW:
            return
        usual = median(self._seconds)
        if self._trying:
            self._decide(usual)
        elif self._since_trial >= self._patience or self._is_disturbed(usual):
            self._to_beat, self._trying = usual, True
            self._seconds.clear()
        elif self._usual is None:
            self._usual = usual

    def _is_disturbed(self, seconds: float) -> bool:
        return self._usual is not None and seconds > _DISTURBED * self._usual

    def _decide(self, seconds: float) -> None:
        won = seconds <= _GAIN * self._to_beat
        self._current ^= won
        self._patience = _PATIENCE[0] if won else min(2 * self._patience, _PATIENCE[1])
        self._usual = seconds if won else self._to_beat
        self._since_trial, self._trying = 0, False
        self._seconds.clear()
