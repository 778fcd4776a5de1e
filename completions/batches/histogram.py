"""Quantiles of numbers that arrive one by one, in bounded memory."""

import math
from collections.abc import Mapping
from typing import Any

WIDTH = 1.05
"""The ratio of the bounds of a bucket: a quantile is off by 2.5 % at most."""
LEAST = 1e-4
"""Numbers up to this one share the first bucket."""
SHOWN = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Histogram:
    """Counts numbers in buckets of equal logarithmic width. Sums and maximum are exact."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        stored = stored or {}
        self._counts = {int(bucket): n for bucket, n in stored.get("counts", {}).items()}
        self.sum: float = stored.get("sum", 0)
        self.most: float = stored.get("most", 0)
        self._squares: float = stored.get("squares", 0)
        self._cubes: float = stored.get("cubes", 0)

    @property
    def count(self) -> int:
        return sum(self._counts.values())

    def add(self, number: float) -> None:
        bucket = math.ceil(math.log(max(number, LEAST) / LEAST, WIDTH))
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.sum += number
        self._squares += number**2
        self._cubes += number**3
        self.most = max(self.most, number)

    @property
    def moments(self) -> tuple[float, float]:
        """Sums of the squares and of the cubes of the distances from the mean."""
        n = self.count
        mean = self.sum / n
        squares = self._squares - n * mean**2
        cubes = self._cubes - 3 * mean * self._squares + 2 * n * mean**3
        return max(0.0, squares), cubes

    def quantile(self, share: float) -> float:
        """Return the number that this share of all numbers does not exceed; 0 if there are none."""
        left = share * self.count
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return min(LEAST * WIDTH ** (bucket - 0.5) if bucket else 0.0, self.most)
        return self.most

    def as_dict(self) -> dict[str, object]:
        """Return the histogram as JSON that the constructor reads."""
        counts = {str(bucket): n for bucket, n in self._counts.items()}
        sums = {"sum": self.sum, "squares": self._squares, "cubes": self._cubes}
        return {"counts": counts, "most": self.most, **sums}

    def as_summary(self, digits: int) -> dict[str, float] | None:
        """Return mean, quantiles and maximum, rounded; None without numbers."""
        if not self.count:
            return None
        quantiles = {name: self.quantile(share) for name, share in SHOWN.items()}
        summary = {"mean": self.sum / self.count, **quantiles, "max": self.most}
        return {name: round(number, digits or None) for name, number in summary.items()}
