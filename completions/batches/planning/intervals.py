"""Intervals that hold with a probability of 90 %, from small samples."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from completions.batches.histogram import Histogram

COVERED = 0.9
MIN_SAMPLE = 5
"""The smallest sample for which an interval is computed."""
_Z = statistics.NormalDist().inv_cdf((1 + COVERED) / 2)


class Interval(NamedTuple):
    """Bounds, and the expected value if there is one."""

    least: float | None
    most: float | None
    expected: float | None


def compute_quantile(freedom: int) -> float:
    """Compute Student's quantile for COVERED, by the expansion of Fisher and Cornish (1960)."""
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def predict_sum(sample: Histogram, more: int) -> Interval | None:
    """Predict a total: the sample's sum plus `more` values of the same distribution.

    None for a small sample. The centre is shifted as Johnson ("Modified t tests and confidence
    intervals for asymmetrical populations", 1978) proposes, since lengths have a long tail.
    """
    n = sample.count
    if n < MIN_SAMPLE:
        return None
    mean = sample.sum / n
    squares, cubes = sample.moments
    variance = squares / (n - 1)
    shift = cubes / n / (6 * variance * n) if variance else 0.0
    spread = compute_quantile(n - 1) * math.sqrt(variance * (more + more**2 / n))
    middle = sample.sum + more * (mean + shift)
    return Interval(middle - spread, middle + spread, sample.sum + more * mean)


def predict_next(sample: Sequence[float]) -> Interval | None:
    """Predict the next number of a series without zeros; None if it is empty. A series of fewer
    than MIN_SAMPLE numbers gives no bounds."""
    if not sample:
        return None
    logs = [math.log(number) for number in sample]
    middle, n = statistics.mean(logs), len(logs)
    if n < MIN_SAMPLE:
        return Interval(None, None, math.exp(middle))
    spread = compute_quantile(n - 1) * statistics.stdev(logs) * math.sqrt(1 + 1 / n)
    return Interval(math.exp(middle - spread), math.exp(middle + spread), math.exp(middle))
