"""Measures the time of a loop by phase."""

import time
from collections.abc import Callable


class Stopwatch:
    """Sums laps by name. One thread laps; any thread may read the totals."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._totals: dict[str, float] = {}
        self._since = 0.0

    def start(self) -> Callable[[str], None]:
        """Begin a round. Returns :meth:`lap`."""
        self._since = self._clock()
        return self.lap

    def lap(self, name: str) -> None:
        """Add the time since the last lap, or since the start, to ``name``."""
        now = self._clock()
        self._totals[name] = self._totals.get(name, 0.0) + now - self._since
        self._since = now

    def totals(self) -> dict[str, float]:
        """Return seconds by name."""
        return dict(self._totals)
