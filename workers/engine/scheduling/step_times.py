"""Learns what a step costs, from the measured times of steps. No torch, no clock."""

import math
from collections.abc import Iterable
from operator import mul
from typing import NamedTuple

from workers.engine.core.sequence import Sequence

_LEAST_NOISE, _MOST_NOISE = 0.05, 0.3
"""Bounds of the measured noise: the share of a step's time that its work does not explain."""

_FIRST_NOISE = 0.1
_NOISE_WEIGHT = 0.05
"""The weight of a step in the measured noise."""

_DRIFT = 0.03
"""By which share of itself, or of a tenth of the step's time, a cost may change from one step to
the next that has it: cores are shared for a while, and threads are tuned."""

_CLIP = 3.0
"""A residual counts as no more than this many standard deviations: single steps are delayed by
other processes, compilers or the memory allocator."""

_ROUNDING = 1e-9
"""The least variance of a step's time, as a share of what the variances of the costs alone make of
it. Less is the difference of much larger numbers, which rounding may turn negative."""

_CAUTION = 1.5
"""How many standard deviations :meth:`StepTimes.bound` lies above the expected time."""

_FIRST_COSTS = (1.0, 1 / 32, 1 / 32, 1 / 16, 1 / 64)
"""The costs by term before any is known, as shares of the first step's time; all of them may be
wrong by as much again. On CPUs a prompt's row takes 1/60 to 1/20 of a step that decodes one row, so
the first chunk is rather too small, and the second knows better."""


class StepWork(NamedTuple):
    """What a step computes, in the terms of its cost."""

    steps: float = 1.0
    decoded: float = 0.0
    """Rows that are the only one of their sequence."""
    decoded_context: float = 0.0
    """Their positions, summed, in thousands."""
    rows: float = 0.0
    """Rows of prompts, or of other tokens that are there already."""
    rows_context: float = 0.0
    """Their positions, summed, in thousands."""

    def add(self, first: int, size: int) -> "StepWork":
        """Return the same work and ``size`` more rows of one sequence, from position ``first``
        on."""
        context = size * (first + (size - 1) / 2) / 1000
        if size == 1:
            return self._replace(
                decoded=self.decoded + 1, decoded_context=self.decoded_context + context
            )
        return self._replace(rows=self.rows + size, rows_context=self.rows_context + context)


def measure_work(chunks: Iterable[tuple[Sequence, int]]) -> StepWork:
    """Return the work of a step that has not advanced its sequences yet."""
    decoded = decoded_context = rows = rows_context = 0.0
    for sequence, size in chunks:  # as StepWork.add, without its calls: a step has many sequences
        context = size * (sequence.num_computed + (size - 1) / 2) / 1000
        if size == 1:
            decoded += 1
            decoded_context += context
        else:
            rows += size
            rows_context += context
    return StepWork(1.0, decoded, decoded_context, rows, rows_context)


class StepTimes:
    """The seconds of a step as a sum of costs per step, row and position.

    A Kalman filter (Kalman, "A new approach to linear filtering and prediction problems", 1960)
    estimates the five costs of :class:`StepWork` and how uncertain they are. Costs that a step does
    not have stay as they are, so those of prompts outlast any number of steps without one.

    Lists take a quarter of the time of arrays here: after a forward pass, the processor's caches
    hold none of the engine's code, and numpy has more code to fetch.
    """

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._covariance: list[list[float]] = []
        self._noise = _FIRST_NOISE

    def note(self, work: StepWork, seconds: float) -> None:
        """Learn from a step. One without a measurable time teaches nothing."""
        if seconds <= 0:
            return
        if not self._costs:
            self._begin(seconds)
        costs, covariance = self._costs, self._covariance
        expected = _dot(work, costs)
        for i, term in enumerate(work):
            if term > 0:
                covariance[i][i] += (_DRIFT * max(costs[i], expected / 10 / term)) ** 2
        shared = [_dot(work, line) for line in covariance]
        largest = sum(covariance[i][i] * term * term for i, term in enumerate(work))
        variance = max(_dot(work, shared) + self._variance(expected), _ROUNDING * largest)
        if variance <= 0:
            return
        residual = seconds - expected
        if expected > 0:
            weight = _NOISE_WEIGHT
            error = min(abs(residual) / expected, _MOST_NOISE)
            noise = math.sqrt((1 - weight) * self._noise**2 + weight * error**2)
            self._noise = max(_LEAST_NOISE, noise)
        most = _CLIP * math.sqrt(variance)
        residual = min(max(residual, -most), most)
        for i, each in enumerate(shared):
            gain = each / variance
            costs[i] += gain * residual
            for j, other in enumerate(shared):
                covariance[i][j] -= gain * other
        self._raise_negative()

    def _begin(self, seconds: float) -> None:
        """Guess the costs from the first step's time."""
        self._costs = [seconds * share for share in _FIRST_COSTS]
        self._covariance = [[0.0] * len(self._costs) for _ in self._costs]
        for i, cost in enumerate(self._costs):
            self._covariance[i][i] = cost**2

    def _raise_negative(self) -> None:
        """Raise negative costs to 0, and change the others by what that says about them."""
        costs = self._costs
        for _ in costs:
            least = min(costs)
            if least >= 0:
                return
            lowest = costs.index(least)
            column = self._covariance[lowest]
            for i, shared in enumerate(column if column[lowest] > 0 else ()):
                costs[i] -= shared * (least / column[lowest])
            costs[lowest] = 0.0
        self._costs = [max(cost, 0.0) for cost in costs]

    @property
    def is_known(self) -> bool:
        """Whether any step was measured."""
        return bool(self._costs)

    def expect(self, work: StepWork) -> float:
        """Return the expected seconds of a step; 0 while nothing is known."""
        return _dot(work, self._costs)

    def bound(self, work: StepWork) -> float:
        """Return the seconds that few steps of this work exceed; 0 while nothing is known."""
        expected = self.expect(work)
        shared = [_dot(work, line) for line in self._covariance]
        variance = _dot(work, shared) + self._variance(expected)
        return expected + _CAUTION * math.sqrt(max(variance, 0.0))

    def _variance(self, seconds: float) -> float:
        """Return the variance of a measured time around its expectation."""
        return (self._noise * seconds) ** 2


def _dot(a: Iterable[float], b: Iterable[float]) -> float:
    total: float = sum(map(mul, a, b))
    return total
