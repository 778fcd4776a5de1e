"""The requests that an engine has accepted and that have not ended, and their deadlines. No
clock."""

import heapq
import logging
import threading
from itertools import count

from workers.engine.core.output import RequestOutput
from workers.engine.core.sequence import Sequence
from workers.engine.exceptions import (
    EngineError,
    EngineFault,
    EngineOverloaded,
    EngineStopped,
    InvalidRequest,
    ProcessorError,
    RequestFault,
)
from workers.engine.request_state import RequestState
from workers.engine.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

_MAX_ENDED = 64
"""How many deadlines of ended requests may stay, in addition to the number of live requests."""


class LiveRequests:
    """Tracks each request from its acceptance to its end, failure or abort.

    Any thread may call ``enter``, ``drop`` and ``close``; the rest belongs to the engine's thread.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._states: dict[str, RequestState] = {}
        self._owners: dict[Sequence, RequestState] = {}
        self._changed: dict[RequestState, None] = {}
        self.closed = False

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, request_id: str) -> RequestState:
        return self._states[request_id]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    def enter(self, state: RequestState, max_sequences: int | None = None) -> None:
        """Accept a request.

        Raises EngineStopped after :meth:`close`, InvalidRequest for an id in use, and
        EngineOverloaded if more than ``max_sequences`` sequences would be live.
        """
        request_id = state.request.request_id
        with self._lock:
            if self.closed:
                raise EngineStopped
            if request_id in self._states:
                raise InvalidRequest(f"Request {request_id} is already running")
            if max_sequences is not None:
                unfinished = sum(other.num_unfinished for other in self._states.values())
                if unfinished + len(state.sequences) > max_sequences:
                    raise EngineOverloaded
            self._states[request_id] = state
            self._owners.update(dict.fromkeys(state.sequences, state))

    def owner(self, seq: Sequence) -> RequestState:
        """Return the request that a live sequence belongs to."""
        return self._owners[seq]

    def list_adapters(self) -> set[str]:
        """Return the adapters of all sequences that may still compute."""
        with self._lock:
            return {seq.adapter for seq in self._owners if seq.adapter is not None}

    def drop(self, request_id: str) -> RequestState | None:
        """Forget a request. Return it for :meth:`release`, or None if it is not live."""
        with self._lock:
            return self._states.pop(request_id, None)

    def close(self) -> None:
        with self._lock:
            self.closed = True

    def touch(self, seq: Sequence) -> None:
        """Record that a sequence has new output."""
        state = self._owners[seq]
        state.changed[seq] = None
        self._changed[state] = None

    def finish(self, seq: Sequence) -> None:
        """End a sequence."""
        self._scheduler.finish(seq)
        self._owners[seq].num_unfinished -= 1

    def fail(self, state: RequestState, error: EngineError) -> None:
        """End a request with an error and free everything that it holds."""
        if not state.has_ended:
            state.error = error
            self._changed[state] = None
            self.release(state)

    def blame(self, state: RequestState, error: Exception) -> None:
        """End a request with the error that its own processing raised."""
        cause = error.__cause__ if isinstance(error, ProcessorError) else error
        if not isinstance(cause, EngineError):
            name = state.request.request_id
            logger.error("request %s failed", name, exc_info=cause, extra={"engine_request": name})
        self.fail(state, error if isinstance(error, EngineError) else RequestFault(repr(error)))

    def fail_all(self, cause: BaseException) -> list[RequestOutput]:
        """Close, and end every request with the error that ended the engine."""
        with self._lock:
            self.closed = True
            live = list(self._states.values())
        for state in live:
            self.fail(state, EngineFault(f"The step that ran this request failed: {cause!r}"))
        return self.collect()

    def release(self, state: RequestState) -> None:
        """Free the slots and blocks that a request holds."""
        for seq in state.sequences:
            self._scheduler.finish(seq)
            self._owners.pop(seq, None)

    def collect(self) -> list[RequestOutput]:
        """Return an output for each changed request that is still live. Forget those that ended."""
        changed, self._changed = self._changed, {}
        ended = [state for state in changed if state.has_ended]
        with self._lock:
            states = self._states
            live = [s for s in changed if states.get(s.request.request_id) is s]
            for state in ended:
                if states.get(state.request.request_id) is state:
                    del states[state.request.request_id]
        for state in ended:
            for seq in state.sequences:
                self._owners.pop(seq, None)
        return [state.take_output() for state in live]


class Deadlines:
    """The deadlines of live requests, in a heap. ``now`` is on their clock, time.monotonic()."""

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
