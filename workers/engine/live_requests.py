"""The requests that an engine has taken in and that have not ended."""

import logging
import threading

from workers.engine.exceptions import (
    EngineError,
    EngineFault,
    EngineOverloaded,
    EngineStopped,
    InvalidRequest,
    RequestFault,
)
from workers.engine.request import RequestOutput
from workers.engine.request_state import RequestState
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.sequence import Sequence

logger = logging.getLogger(__name__)


class LiveRequests:
    """What becomes of each request: a step changes it, it fails, is dropped or ends.

    ``enter``, ``drop`` and ``close`` may be called from any thread; all else belongs to the
    stepping one.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._states: dict[str, RequestState] = {}
        self._changed: dict[RequestState, None] = {}
        self.closed = False

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, request_id: str) -> RequestState:
        return self._states[request_id]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    def enter(self, state: RequestState, max_sequences: int | None = None) -> None:
        """Take a request in. Raises EngineStopped once closed, InvalidRequest for an id that is
        taken, and EngineOverloaded when more than ``max_sequences`` would not have ended."""
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

    def drop(self, request_id: str) -> RequestState | None:
        """Forget a request, if it is live, and say which; :meth:`release` frees what it holds."""
        with self._lock:
            return self._states.pop(request_id, None)

    def close(self) -> None:
        with self._lock:
            self.closed = True

    def touch(self, seq: Sequence) -> None:
        """A sequence has something to say."""
        seq.state.changed.append(seq)
        self._changed[seq.state] = None

    def finish(self, seq: Sequence) -> None:
        """A sequence has come to its end."""
        self._scheduler.finish(seq)
        seq.state.num_unfinished -= 1

    def fail(self, state: RequestState, error: EngineError) -> None:
        """End a request with an error, and free all it holds."""
        if not state.ended:
            state.error = error
            self._changed[state] = None
            self.release(state)

    def blame(self, state: RequestState, error: Exception) -> None:
        """End a request with whatever its own processing raised."""
        if not isinstance(error, EngineError):
            name = state.request.request_id
            logger.error("request %s failed", name, exc_info=error, extra={"engine_request": name})
            error = RequestFault(repr(error))
        self.fail(state, error)

    def fail_all(self, cause: BaseException) -> list[RequestOutput]:
        """Close, and end every request because of what ended the engine."""
        with self._lock:
            self.closed = True
            live = list(self._states.values())
        for state in live:
            self.fail(state, EngineFault(f"The step that ran this request failed: {cause!r}"))
        return self.collect()

    def release(self, state: RequestState) -> None:
        """Free all that a request holds."""
        for seq in state.sequences:
            self._scheduler.finish(seq)

    def collect(self) -> list[RequestOutput]:
        """One output for each request that changed and was not dropped meanwhile; forget those
        that ended."""
        changed, self._changed = self._changed, {}
        outputs = []
        for state in changed:
            request_id = state.request.request_id
            with self._lock:
                if self._states.get(request_id) is not state:
                    continue
                if state.ended:
                    del self._states[request_id]
            outputs.append(state.take_output())
        return outputs
