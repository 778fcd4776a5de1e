"""The web tier's side of a job: submit, cancel, look up, and keep the web process's lease."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import orjson
import redis
import redis.asyncio

from completions.jobs.connection import COMMAND_TIMEOUT, Line, bounded
from completions.jobs.events import EndEvent, Event, JobError, Usage
from completions.jobs.gathering import Gathering
from completions.jobs.limits import (
    UNLIMITED,
    BudgetReachedError,
    LimitName,
    LimitReachedError,
    Limits,
    Remaining,
    UnseededError,
)
from completions.jobs.metering import (
    adapter_of,
    metering,
    most_cost,
    most_tokens,
    parameters_of,
)
from completions.jobs.scripts import Scripts

Kind = Literal["sync", "stream", "background", "batch"]

# Celery serves lower numbers first: who is watching tokens arrive waits least.
PRIORITIES: Mapping[Kind, int] = {"stream": 0, "sync": 3, "background": 6, "batch": 9}
WEB_LEASE = 15
"""Seconds after which a web process that stopped renewing counts as dead."""
FIRST_CHECK = 15.0
"""Seconds until the reconciler first looks whether a new job's message was lost."""
LEASE_OVERTIME = 60.0
"""Seconds past its deadline after which a job that was never seen to end stops taking a place."""
LINES_PER_SEQUENCE = 2
"""Lines of batches that are sent to a worker per sequence that it runs at once: enough that none of
its places waits for the feeder."""
SERVED_WITHIN = 60.0
"""Seconds that a model counts as served after its last worker's last heartbeat."""


class QueueFullError(Exception):
    """Too many jobs are open; the client should come back later."""


class KeyQueueFullError(QueueFullError):
    """They are those of the job's own API key."""


class ModelUnservedError(Exception):
    """No worker serves the model, and nobody would wait for one."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What a client calls one request, so that sending it again does not run it again."""

    route: str
    key: str
    body_digest: str
    """Of the body that came with it."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated job on its way into the queue."""

    id: str
    kind: Kind
    model: str
    organization_id: int
    api_key_id: int
    request: Mapping[str, Any]
    """For the worker: prompts, sampling, grammar."""
    view: Mapping[str, Any]
    """For the web tier: what responses are built from."""
    deadline: float
    """Unix time at which the job fails if it has not ended."""
    ttl: int
    """Seconds that an ended job can still be fetched."""
    limits: Limits = UNLIMITED
    """What its API key may use."""
    idempotency: IdempotencyKey | None = None
    request_id: str = ""
    """Of the HTTP request that made it, where one did."""
    trace: str = ""
    """W3C headers of that request's span as JSON, where it is traced."""
    prices: Sequence[float] = ()
    """Of a token of a prompt, of a cached prompt and of a completion, in billionths; none if it is
    free."""
    stored: bool = False
    """Whether its usage record keeps the request."""

    @property
    def priority(self) -> int:
        """Celery's. A request's own goes before its kind; the engine then compares requests'."""
        own = self.request.get("priority", 0)
        if own > 0:
            return PRIORITIES["stream"]
        of_kind = PRIORITIES[self.kind]
        return max(of_kind, PRIORITIES["background"]) if own else of_kind

    @property
    def kept(self) -> bool:
        """Whether SQL has it too: it survives Redis and the web process that took it, and Redis
        keeps its result until SQL does."""
        return self.idempotency is not None or not self.waited_for

    @property
    def waited_for(self) -> bool:
        """Whether a client is on the line; others can wait for a worker."""
        return self.kind in ("sync", "stream")

    @property
    def most_tokens(self) -> int:
        """Tokens that it can use: every prompt once, every choice at its longest."""
        return most_tokens(self.request)

    @property
    def most_cost(self) -> int:
        """What that costs, in billionths."""
        return most_cost(self.request, self.prices)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as Redis knows it, without its events."""

    id: str
    kind: Kind
    state: Literal["queued", "running", "completed", "failed", "cancelled"]
    organization_id: int
    view: Mapping[str, Any]
    deadline: float
    """By the clock of this host, which may be wrong."""
    ttl: int
    finished: float | None
    error: JobError | None
    usage: Usage | None
    sequence_number: int = 1
    """Of its next event."""
    events: Sequence[Event] | None = None
    """All of them, when it ended so long ago that Redis has none."""

    @classmethod
    def queued(cls, job: NewJob) -> "JobRecord":
        """A job that was just accepted."""
        return cls(
            id=job.id,
            kind=job.kind,
            state="queued",
            organization_id=job.organization_id,
            view=job.view,
            deadline=job.deadline,
            ttl=job.ttl,
            finished=None,
            error=None,
            usage=None,
        )

    def ended_as(self, end: EndEvent, finished: float, events: Sequence[Event]) -> "JobRecord":
        """The same job after its end."""
        return replace(
            self,
            state=end.state,
            finished=finished,
            error=end.error,
            usage=end.usage,
            sequence_number=end.sequence_number,
            events=events,
        )

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Times:
    """When what happened to a job, in Unix seconds as Redis counts them, and who ran it."""

    created: float
    started: float | None
    first_event: float | None
    finished: float | None
    worker: str | None


class Submission:
    """Bound to one asynchronous client, key prefix and web process."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str, web_id: str) -> None:
        self._client = client
        self._prefix = prefix
        self._scripts = Scripts(client, prefix)
        self._line = Line(client)
        self._gathered: Gathering[tuple[str, list[Any]], Any] = Gathering(self._call_all)
        self.web_id = web_id

    async def submit(
        self,
        job: NewJob,
        max_open: int,
        max_of_class: int = sys.maxsize,
        max_of_key: int = sys.maxsize,
        message: tuple[str, bytes] = ("", b""),
    ) -> Remaining:
        """Store the job as queued. `max_of_class` bounds calls and streams where it is one of them,
        else background jobs; `max_of_key` both together. `message` is the list without its prefix
        on which a worker finds it, and what it finds there; without one the caller publishes it.

        Returns what its key has left. Raises QueueFullError, LimitReachedError,
        BudgetReachedError, UnseededError, and ModelUnservedError for a job that somebody waits for.
        """
        web = "" if job.kept else self.web_id
        patience = SERVED_WITHIN if job.waited_for else 0
        most = max_open, max_of_class, max_of_key
        args = _arguments(job, most, FIRST_CHECK, patience, web, message)
        reply = await self._gathered.do(("submit", args))
        verdict = _verdict(reply)
        if verdict == "full":
            raise QueueFullError
        if verdict == "crowded":
            raise KeyQueueFullError
        if verdict == "unserved":
            raise ModelUnservedError
        if verdict == "exists":
            return Remaining()
        requests, tokens, retry_after = map(float, reply[1:])
        remaining = Remaining.of(job.limits, requests, tokens)
        if verdict != "ok":
            raise LimitReachedError(cast("LimitName", verdict), remaining, retry_after)
        return remaining

    async def cancel(self, job_id: str) -> None:
        """At once while queued, within one engine step while running, no effect once ended. After
        every `submit` that was called before, even if nobody waited for that."""
        await self._gathered.do(("cancel", [job_id]))

    async def _call_all(self, calls: Sequence[tuple[str, list[Any]]]) -> list[Any]:
        async with bounded(COMMAND_TIMEOUT):
            return await self._scripts.call_each(self._line, calls)

    async def fetch(self, job_id: str) -> JobRecord | None:
        """The job, or None when it is unknown or has expired."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hgetall(f"{self._prefix}job:{job_id}")
        pipeline.time()
        raw, (seconds, microseconds) = await pipeline.execute()
        if not raw:
            return None
        ahead = time.time() - (seconds + microseconds / 1e6)
        fields = {name.decode(): value.decode() for name, value in raw.items()}
        error = orjson.loads(fields["error"]) if fields.get("error") else None
        usage = orjson.loads(fields["usage"]) if fields.get("usage") else None
        return JobRecord(
            id=job_id,
            kind=fields["kind"],
            state=fields["state"],
            organization_id=int(fields["organization"]),
            view=orjson.loads(fields["view"]),
            deadline=float(fields["deadline"]) + ahead,
            ttl=int(fields["ttl"]),
            finished=float(fields["finished"]) if "finished" in fields else None,
            error=JobError(**error) if error else None,
            usage=Usage(**usage) if usage else None,
            sequence_number=int(fields["seq"]),
        )

    async def times(self, job_id: str) -> Times | None:
        """None when the job is unknown or has expired."""
        pipeline = self._client.pipeline(transaction=False)
        names = ("created", "started", "finished", "worker")
        pipeline.hmget(f"{self._prefix}job:{job_id}", names)
        pipeline.xrange(f"{self._prefix}ev:{job_id}", count=1)
        (created, started, finished, worker), entries = await pipeline.execute()
        if created is None:
            return None
        first = int(entries[0][0].split(b"-")[0]) / 1000 if entries else None
        return Times(
            created=float(created),
            started=float(started) if started else None,
            first_event=first,
            finished=float(finished) if finished else None,
            worker=worker.decode() if worker else None,
        )

    async def states(self, job_ids: Sequence[str]) -> list[str | None]:
        """Of each job; None where Redis does not know it."""
        pipeline = self._client.pipeline(transaction=False)
        for job_id in job_ids:
            pipeline.hget(f"{self._prefix}job:{job_id}", "state")
        return [state.decode() if state else None for state in await pipeline.execute()]

    async def remove(self, job_id: str) -> None:
        """Delete an ended job, which no script changes any more."""
        await self._client.delete(f"{self._prefix}job:{job_id}", f"{self._prefix}ev:{job_id}")

    async def renew_lease(self) -> None:
        await self._client.set(f"{self._prefix}web:{self.web_id}", 1, ex=WEB_LEASE)

    async def drop_lease(self) -> None:
        await self._client.delete(f"{self._prefix}web:{self.web_id}")


def submit_kept(
    client: redis.Redis, prefix: str, jobs: Sequence[NewJob], check_after: float = 0
) -> list[bool | BudgetReachedError | UnseededError]:
    """Put jobs that SQL holds into Redis, in one round trip. False for what is there already, an
    error for what its budgets do not allow now; nothing else is held against them.

    Whoever does not publish them leaves it to the reconciler, which looks after `check_after`
    seconds.
    """
    unbounded = (sys.maxsize, sys.maxsize, sys.maxsize)
    calls = []
    for job in jobs:
        unrated = replace(job, limits=job.limits.only_budgets())
        calls.append(("submit", _arguments(unrated, unbounded, check_after, 0, "")))
    return [_admitted(reply) for reply in Scripts(client, prefix).call_all(calls)]


def _admitted(reply: list[bytes]) -> bool | BudgetReachedError | UnseededError:
    try:
        return _verdict(reply) == "ok"
    except (BudgetReachedError, UnseededError) as error:
        return error


def _verdict(reply: list[bytes]) -> str:
    """Raises BudgetReachedError and UnseededError."""
    verdict, *details = (part.decode() for part in reply)
    if verdict == "budget":
        scope, name, used = details
        if name == "unseeded":
            raise UnseededError(scope)
        raise BudgetReachedError(scope[0] == "o", name, int(used))
    return verdict


def _arguments(
    job: NewJob,
    most: tuple[int, int, int],
    check_after: float,
    patience: float,
    web: str,
    message: tuple[str, bytes] = ("", b""),
) -> list[Any]:
    """Of `submit.lua`; at `most` so many jobs may be open: of all, its class, its API key."""
    seconds = job.deadline - time.time()
    lease = seconds + LEASE_OVERTIME if job.waited_for else None
    owner = job.api_key_id, job.organization_id
    metered = metering(owner, job.limits, (seconds, lease), job.request, job.most_cost)
    bounds = [*most, check_after, patience]
    return [
        job.id, job.kind, job.model, *bounds, metered, web, WEB_LEASE, *message,
        *_fields(job, web),
    ]  # fmt: skip


def _fields(job: NewJob, web: str) -> list[Any]:
    """The job hash's fields and values in turn."""
    fields: dict[str, Any] = {
        "request": orjson.dumps(job.request),
        "view": orjson.dumps(job.view),
        "priority": job.priority,
        "ttl": job.ttl,
        "web": web,
        "kept": int(job.kept),
        "prompt_tokens": sum(map(len, job.request.get("prompts", ()))),
        "request_id": job.request_id,
        "adapter": adapter_of(job.request),
        "parameters": orjson.dumps(parameters_of(job.request)),
    }
    if job.prices:
        fields["prices"] = orjson.dumps(list(job.prices))
    if job.stored:
        fields["stored"] = 1
    if job.trace:
        fields["trace"] = job.trace
    return [part for pair in fields.items() for part in pair]
