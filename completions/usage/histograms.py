"""Quantiles of latency histograms."""

from collections.abc import Sequence

from completions.models.usage import BOUNDS_MS


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the quantile in milliseconds, interpolated linearly; None if the histogram is empty.

    Values above the last bound count as that bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for index, count in enumerate(counts):
        if count and below + count >= rank:
            lower = BOUNDS_MS[index - 1] if index else 0
            upper = BOUNDS_MS[index] if index < len(BOUNDS_MS) else lower
            return lower + (upper - lower) * max(0.0, rank - below) / count
        below += count
    return float(BOUNDS_MS[-1])
