"""The cost of a step by its number of tokens: its forward pass is measured at start, the rest while
steps run."""

import time
from collections.abc import Callable
from itertools import pairwise

_SIZES = (1, 4, 8, 16, 32, 64)
_MAX_TOKENS = 128
"""Larger steps have no drafts."""

_ROUNDS = (2, 8)
"""How often each size is measured: minimum and maximum."""

_SECONDS = 0.5
"""Seconds for rounds beyond the minimum."""

_FALL, _RISE = 0.3, 0.03
"""The weights of a new time below, and above, the estimate: a time that other processes lengthened
is less reliable."""


class StepCosts:
    """The seconds of a forward pass by tokens, and of masks and sampling by row of logits."""

    def __init__(self, forward: Callable[[int], None]) -> None:
        """``forward`` runs a forward pass of the given number of decoding sequences."""
        self.forward_seconds = _curve(_measure(forward))
        """The seconds of passes of 0 to 128 tokens, which never decrease."""
        self.row_seconds = 0.0
        """The seconds of masks and sampling per row of logits."""

    def note_rest(self, num_rows: int, seconds: float) -> None:
        """Record the time of masks and sampling in a step."""
        row_seconds = seconds / num_rows
        weight = _FALL if row_seconds < self.row_seconds else _RISE
        first = not self.row_seconds
        self.row_seconds = (
            row_seconds if first else (1 - weight) * self.row_seconds + weight * row_seconds
        )


def _measure(forward: Callable[[int], None]) -> dict[int, float]:
    """Return the shortest time of each size. Sizes are measured in turn, so that other load on the
    machine affects all of them."""
    shortest = dict.fromkeys(_SIZES, float("inf"))
    least, most = _ROUNDS
    began = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - began > _SECONDS:
            break
        for size in _SIZES:
            start = time.perf_counter()
            forward(size)
            shortest[size] = min(shortest[size], time.perf_counter() - start)
    return shortest


def _curve(measured: dict[int, float]) -> list[float]:
    """Interpolate linearly between measured sizes; beyond, use the slope of their larger half."""
    half = _SIZES[len(_SIZES) // 2]
    slope = max(0.0, measured[_SIZES[-1]] - measured[half]) / (_SIZES[-1] - half)
    last = measured[_SIZES[-1]] + slope * (_MAX_TOKENS - _SIZES[-1])
    points = [(0, measured[1]), *measured.items(), (_MAX_TOKENS, last)]
    curve = [points[0][1]]
    for (before, _), (after, seconds) in pairwise(points):
        low, width = curve[-1], after - before
        rise = max(0.0, seconds - low)
        curve += [low + rise * i / width for i in range(1, width + 1)]
    return curve
