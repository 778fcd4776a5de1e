"""What is collected of the lines of a file that ask for one model: their order, plan, forecast."""

from collections.abc import Sequence

from completions.batches.planning.cache import CacheSize
from completions.batches.planning.forecast import Tally, load_token_source
from completions.batches.planning.order import Plan, Planner
from completions.contract.job_request import JobRequest


class LinesOfModel:
    def __init__(self, model: str, size: CacheSize | None, *, has_forecast: bool) -> None:
        """`size` is that of the cache of the model's workers."""
        self._planner = Planner(size)
        self._source = load_token_source(model)
        self._tally = Tally() if has_forecast else None
        self._lines = self._bytes = self._most = 0

    def add(self, number: int, custom_id: str, request: JobRequest, size: int) -> None:
        """Add a line of `size` bytes."""
        self._lines += 1
        self._bytes += size
        self._most += request.max_completion_tokens
        self._planner.add(number, request)
        if self._tally is not None:
            self._tally.add(custom_id, request, self._source)

    def order(self) -> tuple[Sequence[int], Plan]:
        """Return the line numbers in the order in which they run, and the plan."""
        return self._planner.order()

    def measure(self) -> dict[str, int]:
        """Return the number of lines, their bytes, and the most tokens of their answers."""
        return {"lines": self._lines, "bytes": self._bytes, "most": self._most}

    @property
    def facts(self) -> dict[str, object] | None:
        """What is known of the lines before they run, if a forecast needs it."""
        return None if self._tally is None else self._tally.facts()
