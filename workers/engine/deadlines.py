"""The deadlines of live requests, in a heap. No clock, no torch."""

import heapq
from itertools import count

from workers.engine.request_state import RequestState

_MAX_ENDED = 64
"""How many entries of ended requests may stay, in addition to the number of live requests."""


class Deadlines:
    """The deadlines of live requests. ``now`` is on the same clock, ``time.monotonic()``."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, RequestState]] = []
        self._tiebreak = count()
        self._max_size = _MAX_ENDED

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, state: RequestState) -> None:
        """Watch a request, if it has a deadline."""
        deadline = state.request.deadline
        if deadline is None:
            return
        if len(self._heap) >= self._max_size:
            self._heap = [entry for entry in self._heap if not entry[2].is_released]
            heapq.heapify(self._heap)
            self._max_size = 2 * len(self._heap) + _MAX_ENDED
        heapq.heappush(self._heap, (deadline, next(self._tiebreak), state))

    def pop_passed(self, now: float) -> list[RequestState]:
        """Return live requests whose deadline has passed, the earliest first, each of them once."""
        states = []
        while self._heap and self._heap[0][0] <= now:
            state = heapq.heappop(self._heap)[2]
            if not state.is_released:
                states.append(state)
        return states

    def seconds_left(self, now: float) -> float | None:
        """Return seconds until the earliest deadline, or None if there is none."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None
