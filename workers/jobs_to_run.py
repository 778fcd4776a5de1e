"""The jobs that a worker is about to run: messages that wait for a turn, and jobs that are claimed
and not begun."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from completions.contract.job_request import decode_job_request
from completions.jobs.events import JobError
from completions.jobs.execute import Claim, Execution, PublishedOutput, Room
from workers.engine.core.request import Request
from workers.live_job import AUDIENCES, Done, describe_claim
from workers.room import MAX_TAKE_BYTES, is_used_up

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 0.25
"""Seconds after which a worker looks for jobs without a message."""

Claimed = tuple[Claim, list[Done], Request | JobError]
"""A claimed job without its stored request, its messages, and the request for the engine."""


class JobsToRun:
    """Used by the relay's thread only. What needs Redis raises RedisError or OSError, and can be
    called again."""

    def __init__(self, execution: Execution, model: str, clock: Callable[[], float]) -> None:
        self._execution = execution
        self._model = model
        self._clock = clock
        self._messages: dict[str, list[Done]] = {}
        """Messages of jobs that this worker does not run, by job."""
        self._claimed: deque[Claim] = deque()
        self._may_take = True
        """Whether there may be something to take before the next look."""
        self._may_have_left = True
        """Whether the last look ended for lack of room."""
        self._looked_at = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._messages or self._claimed)

    @property
    def is_urgent(self) -> bool:
        """Whether there is something to do before the next look."""
        return bool(self._claimed) or self._may_take

    def add_message(self, job_id: str, done: Done) -> None:
        self._messages.setdefault(job_id, []).append(done)
        self._may_take = True

    def note_end(self) -> None:
        """Look for jobs at the next turn, if the last look left some for lack of room."""
        self._may_take = self._may_take or self._may_have_left

    def leave_messages(self) -> None:
        """Take nothing, and leave all messages to other workers."""
        self._may_take = False
        for job_id in list(self._messages):
            self._let_go(job_id, "left to other workers")

    def take(self, measure_rooms: Callable[[], Sequence[Room]]) -> None:
        """Claim the jobs whose turn it is while there is room, and let go of messages without work
        for this worker. A worker with room also looks without a message: another one may hold it,
        and have no room."""
        now = self._clock()
        if not self._may_take and now - self._looked_at < LOOK_INTERVAL:
            return
        rooms = measure_rooms()
        taken = self._execution.take(self._model, rooms, list(self._messages))
        self._looked_at = now
        self._may_have_left = is_used_up(rooms, taken.claims)
        self._may_take = sum(claim.size for claim in taken.claims) >= MAX_TAKE_BYTES
        self._claimed.extend(taken.claims)
        self._claim_unqueued([job_id for job_id, why in taken.settled.items() if why == "unqueued"])
        for job_id, reason in taken.settled.items():
            if reason != "unqueued":
                self._let_go(job_id, reason)

    def iter_claimed(self) -> Iterator[Claimed]:
        """Remove and yield the claimed jobs."""
        while self._claimed:
            claim = self._claimed[0]
            understood = self._read_request(claim)  # may need Redis
            self._claimed.popleft()
            yield replace(claim, request=b""), self._messages.pop(claim.job_id, []), understood

    def list_attempts(self) -> list[tuple[str, int]]:
        """Return ids and attempts of the claimed jobs."""
        return [(claim.job_id, claim.attempt) for claim in self._claimed]

    def _claim_unqueued(self, job_ids: list[str]) -> None:
        """Claim jobs that another version submitted: they are in no fair queue."""
        for claim in self._execution.claim(job_ids) if job_ids else ():
            if isinstance(claim, Claim):
                self._claimed.append(claim)
            else:
                self._let_go(claim.job_id, claim.reason)

    def _let_go(self, job_id: str, reason: str) -> None:
        if job_id in self._messages:
            logger.info("job %s is %s: nothing to do", job_id, reason)
            acknowledge(self._messages.pop(job_id))

    def _read_request(self, claim: Claim) -> Request | JobError:
        """Return the request for the engine, with what earlier attempts published."""
        try:
            asked = decode_job_request(claim.request)
            # Twice the priority leaves room for one more rule: what a client waits for goes first.
            fields = structs.asdict(asked) | {"priority": 2 * asked.priority + claim.is_interactive}
            again = claim.attempt > 1
            published = self._execution.read_published(claim.job_id) if again else PublishedOutput()
            return Request(
                request_id=claim.job_id,
                organization=claim.organization_id,
                audience=AUDIENCES[claim.kind],
                deadline=self._clock() + claim.seconds_left,
                published={index: tuple(ids) for index, ids in published.tokens.items()},
                published_ends=frozenset(published.ended),
                **fields,
            )
        except (ValueError, KeyError, TypeError) as error:  # written by another version
            logger.exception("cannot read job %s", claim.job_id, extra=describe_claim(claim))
            return JobError("worker_error", f"Malformed job: {error}")


def acknowledge(callbacks: list[Done]) -> None:
    """Acknowledge a job's messages."""
    for done in callbacks:
        done()
