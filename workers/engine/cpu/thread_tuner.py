"""How many threads a step should use: all cores, or all but one while neighbours need it."""

from collections import deque
from statistics import median

_WINDOW = 6
"""Steps whose median is compared: one that was interrupted tells nothing of the threads."""

_ALIKE = 1.125
"""Steps are alike if neither has more than this many times the tokens of the other."""

_GAIN = 0.92
"""A trial wins if its steps take at most this share of the time."""

_DISTURBED = 1.3
"""Steps that take this many times as long as usual call for a trial at once."""

_PATIENCE = (32, 512)
"""Steps between trials: after one that changed something, and at most."""


class ThreadTuner:
    """Tries the other thread count for a few steps now and then and keeps the faster.

    The threads of a parallel loop wait for the slowest, and spin while they do. If a neighbour
    takes one of two cores, two threads run at a third of the speed of one: measured on
    SmolLM2-135M at batch 32, 155 to 210 tokens/s against 481. Left alone two run at 614 against
    449. A trial costs next to nothing; each that fails doubles the wait for the next.
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
        """Tell how long the step took that ran on :attr:`num_threads`."""
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
