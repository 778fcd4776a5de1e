"""The requests that an engine has accepted and that have not ended, and their deadlines. No
clock."""

import heapq
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import assert_never

from completions.contract.job_request import Task
from completions.contract.usage import Usage
from workers.engine.best_of import BestOf
from workers.engine.core.choice import GrammarState
from workers.engine.core.output import ChoiceDelta, RequestOutput
from workers.engine.core.request import Request
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
from workers.engine.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

_MAX_ENDED = 64
"""How many deadlines of ended requests may stay, in addition to the number of live requests."""


@dataclass(slots=True, eq=False)
class RequestState:
    """One live request: its sequences, what they gained in this step, and its final usage. The
    engine takes what is new as an output."""

    request: Request
    sequences: list[Sequence]
    changed: dict[Sequence, None] = field(default_factory=dict)
    """Sequences that gained something since the last output."""
    error: EngineError | None = None
    num_unfinished: int = 0
    _begun: set[Sequence] = field(default_factory=set)
    _best_of: BestOf | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.num_unfinished = len(self.sequences)
        if self.request.sampling.num_candidates > self.request.sampling.n:
            self._best_of = BestOf(self.request)

    @property
    def has_ended(self) -> bool:
        return self.error is not None or self.num_unfinished == 0

    @property
    def has_started(self) -> bool:
        """Whether any of its tokens was computed."""
        return any(seq.num_computed or seq.num_output_tokens for seq in self.sequences)

    @property
    def is_released(self) -> bool:
        """Whether it holds no slot and no block: it ended or was aborted."""
        return all(seq.finished for seq in self.sequences)

    def follow(self, grammars: Iterable[GrammarState]) -> None:
        """Count the tokens of each continuation that its grammar allows. Raises GrammarError."""
        for seq, grammar in zip(self.sequences, grammars, strict=True):
            if self.is_released:
                return
            if seq.continuation is not None:
                seq.continuation.follow(grammar)

    def take_output(self) -> RequestOutput:
        """Return what is new since the last call, and the usage once the request has ended."""
        changed, self.changed = self.changed, {}
        request = self.request
        match request.task:
            case Task.GENERATE:
                deltas = self._take_choices(changed)
            case Task.SCORE:
                deltas = self._take_scores(changed)
            case _ as unreachable:
                assert_never(unreachable)
        if not self.has_ended:
            return RequestOutput(request.request_id, deltas)
        return RequestOutput(request.request_id, deltas, True, self.error, self.usage())

    def _take_choices(self, changed: Iterable[Sequence]) -> list[ChoiceDelta]:
        """Return what choices gained, without those whose end an earlier run delivered."""
        if self._best_of is None:
            deltas = [delta for seq in changed if (delta := self._take_delta(seq)) is not None]
        else:
            gained = [(seq, delta) for seq in changed if (delta := self._take_delta(seq))]
            deltas = self._best_of.choose(gained)
        if delivered := self.request.published_ends:
            deltas = [delta for delta in deltas if delta.index not in delivered]
        return deltas

    def _take_scores(self, changed: Iterable[Sequence]) -> list[ChoiceDelta]:
        """The choices of continuations that are scored, without those that an earlier run
        delivered."""
        deltas = []
        for seq in changed:
            assert seq.logprobs is not None
            record, continuation = seq.logprobs.prompt, seq.continuation
            delivered = seq.choice.index in self.request.published_ends
            if delivered or record is None or continuation is None or not record.is_complete:
                continue
            rows = record.rows.rows(1, 1 + len(continuation.token_ids))
            deltas.append(continuation.make_delta(seq.choice.index, rows))
            deltas[-1].cached_tokens, seq.logprobs.prompt = seq.cached_tokens, None
        return deltas

    def _take_delta(self, seq: Sequence) -> ChoiceDelta | None:
        """Return what a sequence gained, with what was recorded for it."""
        delta = seq.choice.take_delta()
        if delta is None:
            return None
        if seq not in self._begun:
            self._begun.add(seq)
            delta.cached_tokens = seq.cached_tokens
        if seq.logprobs is not None:
            seq.logprobs.write(delta)
        if delta.finish_reason is not None and seq.record is not None:
            seq.record.write(delta, seq.num_tokens)
        return delta

    def usage(self) -> Usage:
        """Return the tokens that it has used so far: of its prompts, those that a step has begun to
        compute."""
        # A token is appended before it is counted as forced. Read in this order, even by another
        # thread, the forced tokens never exceed the completion tokens.
        forced = sum(seq.choice.num_forced for seq in self.sequences)
        return Usage(
            prompt_tokens=self._prompt_tokens(),
            cached_tokens=sum(
                seq.cached_tokens for seq in self.sequences if not seq.origin.choice_index
            ),
            completion_tokens=sum(seq.num_output_tokens for seq in self.sequences),
            forced_tokens=forced,
        )

    def _prompt_tokens(self) -> int:
        if self.error is None and not self.num_unfinished:
            return self.request.prompt_tokens
        used = [0] * len(self.request.prompts)
        for seq in self.sequences:
            used[seq.origin.prompt_index] = max(used[seq.origin.prompt_index], seq.num_prompt_used)
        return sum(used)


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
