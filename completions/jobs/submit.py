"""The web tier's side of a job: submit it, cancel it, look it up, and keep the web process's
lease."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
from redis.exceptions import RedisError

from completions.contract.job_request import JobRequest
from completions.contract.limits import RATES, REFUNDED
from completions.jobs.connection import COMMAND_TIMEOUT, Bounded, DedicatedConnection
from completions.jobs.limits import (
    UNBOUNDED,
    Allowance,
    Bounds,
    BudgetReachedError,
    BytesFullError,
    KeyQueueFullError,
    LimitReachedError,
    Limits,
    QueueFullError,
    Remaining,
    UnseededError,
)
from completions.jobs.micro_batcher import MicroBatcher
from completions.jobs.new_job import NewJob
from completions.jobs.record import RECORD_FIELDS, Canceller, JobRecord, redis_name
from completions.jobs.store import AsyncStore, SyncStore

logger = logging.getLogger(__name__)

WEB_LEASE = 15
"""Seconds after which a web process that stopped renewing counts as dead."""
FIRST_CHECK = 15.0
"""Seconds until the reconciler first checks whether a new job's message was lost."""
LEASE_MARGIN = 60.0
"""Seconds after its deadline at which a job without a recorded end stops counting towards its API
key's concurrency."""
LINES_PER_SEQUENCE = 2
"""Lines of batches sent to a worker per sequence that it runs at once, so that no slot waits for
the feeder."""
SERVED_WITHIN = 60.0
"""Seconds that a model counts as served after its last worker's last heartbeat."""


class ModelUnservedError(Exception):
    """No worker serves the model, and the client does not wait for one."""


_RATES = {rate.name: rate for rate in RATES}
_REFUSALS = {
    "full": QueueFullError,
    "crowded": KeyQueueFullError,
    "unserved": ModelUnservedError,
}
"""By the verdict of `submit.lua`."""


class Message(NamedTuple):
    """A job's Celery message, for the script that stores the job."""

    queue: str = ""
    """The list that a worker takes it from, without the installation's prefix."""
    payload: bytes = b""


_UNPUBLISHED = Message()
_FETCHED = tuple(redis_name(name).encode() for name in RECORD_FIELDS if name != "request")
"""All but the request, which may be large."""


class Broker:
    """Celery's messages, where they are on another server than the jobs."""

    def __init__(self, store: AsyncStore) -> None:
        self._keys = store.keys
        self._connection = DedicatedConnection(store.client)
        self._batcher: MicroBatcher[Message, object] = MicroBatcher(self._push)

    async def publish(self, message: Message) -> None:
        """Put a message on its list. Raises RedisError or OSError."""
        await self._batcher.do(message)

    async def _push(self, messages: Sequence[Message]) -> list[object]:
        async with Bounded(COMMAND_TIMEOUT):
            return await self._connection.ask_again(
                [("LPUSH", self._keys.queue(each.queue), each.payload) for each in messages]
            )


class Submission:
    """What one web process does with jobs."""

    def __init__(self, store: AsyncStore, web_id: str, broker: Broker | None = None) -> None:
        self._store = store
        self._broker = broker
        self._client, self._keys = store.client, store.keys
        self._connection = DedicatedConnection(store.client)
        self._batcher: MicroBatcher[tuple[str, list[Any]], Any] = MicroBatcher(self._call_all)
        self.web_id = web_id

    async def submit(
        self, job: NewJob, bounds: Bounds = UNBOUNDED, message: Message = _UNPUBLISHED
    ) -> Remaining:
        """Store the job as queued and put its message on its list; without one the caller
        publishes it. Returns what the job's API key has left.

        Raises QueueFullError, LimitReachedError, BudgetReachedError, UnseededError, and
        ModelUnservedError for a job that a client waits for.
        """
        web_id = "" if job.is_durable else self.web_id
        patience = SERVED_WITHIN if job.is_interactive else 0
        pushed = message if self._broker is None else _UNPUBLISHED
        reader = self.web_id if job.kind == "stream" else ""
        args = _submit_args(job, bounds, FIRST_CHECK, patience, web_id, pushed, reader)
        reply = await self._batcher.do(("submit", args))
        verdict = _read_verdict(reply)
        if verdict in _REFUSALS:
            raise _REFUSALS[verdict]
        if self._broker is not None and message.queue and verdict in ("ok", "exists"):
            await self._publish(self._broker, job, message)
        if verdict == "exists":  # the first reply was lost on its way
            return {}
        return _read_remaining(job.limits, verdict, reply)

    async def _publish(self, broker: Broker, job: NewJob, message: Message) -> None:
        """Publish the message of a job that is stored already. Where the broker does not answer, it
        may have the message all the same. A client that waits gets an error, and its job is
        cancelled; any other job is accepted, and the reconciler publishes it again."""
        try:
            await broker.publish(message)
        except (RedisError, OSError) as error:
            if job.is_interactive:
                raise
            logger.warning("%s is queued, but its message is not sent yet: %s", job.id, error)

    async def count_request(self, api_key_id: int, limits: Limits) -> Remaining:
        """Count a request before it is checked at length, or one that makes no job. Returns what
        the API key has left. Raises LimitReachedError."""
        args = [api_key_id, orjson.dumps(_make_rates(limits, None, False))]
        reply = await self._batcher.do(("count_request", args))
        return _read_remaining(limits, reply[0].decode(), reply)

    async def cancel(self, job_id: str, canceller: Canceller = "client") -> None:
        """Cancel a job: at once while it is queued, within one engine step while it runs, without
        effect once it has ended. Takes effect after every earlier `submit`, even one whose caller
        no longer waits."""
        await self._batcher.do(("cancel", [job_id, canceller]))

    async def _call_all(self, calls: Sequence[tuple[str, list[object]]]) -> list[object]:
        async with Bounded(COMMAND_TIMEOUT):
            return await self._store.call_each(self._connection, calls)

    async def fetch(self, job_id: str) -> JobRecord | None:
        """Fetch the job without its request; None if it is unknown or has expired."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hmget(self._keys.job(job_id), _FETCHED)
        pipeline.time()
        values, (seconds, microseconds) = await pipeline.execute()
        if not any(values):
            return None
        record = JobRecord.read(job_id, dict(zip(_FETCHED, values, strict=True)))
        return replace(record, seconds_left=record.deadline - seconds - microseconds / 1e6)

    async def states(self, job_ids: Sequence[str]) -> list[str | None]:
        """Fetch the state of each job; None where Redis does not know it."""
        pipeline = self._client.pipeline(transaction=False)
        for job_id in job_ids:
            pipeline.hget(self._keys.job(job_id), "state")
        return [state.decode() if state else None for state in await pipeline.execute()]

    async def remove(self, job_id: str) -> None:
        """Delete an ended job; no script changes it any more."""
        await self._client.delete(self._keys.job(job_id), self._keys.ev(job_id))

    async def renew_lease(self) -> None:
        await self._client.set(self._keys.web(self.web_id), 1, ex=WEB_LEASE)

    async def drop_lease(self) -> None:
        await self._client.delete(self._keys.web(self.web_id))


def submit_durable(
    store: SyncStore, jobs: Sequence[NewJob], check_after: float = 0
) -> list[bool | BudgetReachedError | UnseededError]:
    """Put jobs that SQL stores into Redis, in one round trip, under no limit but their budgets. A
    background job takes its place of the API key's concurrency, even if none is free.

    Returns for each job whether it was new to Redis, or the error of its budget. Jobs that the
    caller does not publish are published by the reconciler after `check_after` seconds.
    """
    calls = []
    for job in jobs:
        unrated = replace(job, limits=job.limits.without_rates())
        calls.append(("submit", _submit_args(unrated, None, check_after)))
    return [_read_admission(reply) for reply in store.call_all(calls)]


def _read_admission(reply: list[bytes]) -> bool | BudgetReachedError | UnseededError:
    try:
        return _read_verdict(reply) == "ok"
    except (BudgetReachedError, UnseededError) as error:
        return error


def _read_verdict(reply: list[bytes]) -> str:
    """Read the verdict of a reply. Raises BytesFullError, QueueFullError, BudgetReachedError and
    UnseededError."""
    verdict, *details = (part.decode() for part in reply)
    if verdict == "bytes":
        scope, held = details
        if scope[0] in "ko" and scope[1:].isdecimal():
            raise BytesFullError(scope[0] == "o", int(held))
        raise QueueFullError
    if verdict == "budget":
        scope, name, used = details
        if name == "unseeded":
            raise UnseededError(scope)
        raise BudgetReachedError(scope[0] == "o", name, int(used))
    return verdict


def _read_remaining(limits: Limits, verdict: str, reply: list[bytes]) -> Remaining:
    """Read what a reply says is left. Raises LimitReachedError."""
    retry_after, *left = map(float, reply[1:])
    limited = zip(limits.rates.items(), left, strict=True)
    remaining = {name: Allowance(most, max(0, int(rest))) for (name, most), rest in limited}
    if verdict != "ok":
        raise LimitReachedError(verdict, remaining, retry_after)
    return remaining


def _make_rates(
    limits: Limits, request: JobRequest | None, is_counted: bool
) -> list[tuple[str, int, int]]:
    """Return name, limit and what the request takes of each rate, as the scripts read them.
    `request` is None before there is a job; `is_counted` says that it was counted then."""
    return [
        (name, most, _measure(name, request, is_counted)) for name, most in limits.rates.items()
    ]


def _measure(name: str, request: JobRequest | None, is_counted: bool) -> int:
    rate = _RATES[name]
    if request is None:
        return int(rate.is_counted_early)
    return 0 if is_counted and rate.is_counted_early else rate.measure(request)


def _submit_args(  # noqa: PLR0913 - options are keywords
    job: NewJob,
    bounds: Bounds | None,
    check_after: float,
    patience: float = 0,
    web_id: str = "",
    message: Message = _UNPUBLISHED,
    reader: str = "",
) -> list[object]:
    """Make the arguments that `submit.lua` documents: the terms of the job, its message, the fields
    of its record. `bounds` is None for a job that was admitted before."""
    is_admitted, bounds = bounds is None, bounds or UNBOUNDED
    limits = job.limits
    max_bytes = [bounds.bytes_of_organization, bounds.bytes_of_class, bounds.bytes]
    if job.kind != "batch":
        max_bytes.insert(0, bounds.bytes_of_key)
    terms = {
        "id": job.id,
        "kind": job.kind,
        "model": job.model,
        "api_key_id": job.api_key_id,
        "organization_id": job.organization_id,
        "max_open": bounds.jobs,
        "max_of_class": bounds.jobs_of_class,
        "max_of_key": bounds.jobs_of_key,
        "level": job.level,
        "sequences": job.sequences,
        "size": job.size,
        "max_bytes": max_bytes,
        "check_after": check_after,
        "patience": patience,
        "seconds": job.seconds,
        "head_start": job.head_start,
        "rates": _make_rates(limits, job.request, job.is_counted),
        "places": limits.max_concurrency or 0,
        "is_admitted": is_admitted,
        "tokens": job.max_total_tokens,
        "cost": job.max_cost,
        "budgets": [limits.budget.as_list(), limits.organization_budget.as_list()],
        "web": web_id,
        "web_lease": WEB_LEASE,
        "queue": message.queue,
    }
    if REFUNDED in limits.rates:
        terms["reserved"] = job.max_total_tokens
    if job.kind != "batch":
        terms["lease"] = job.seconds + LEASE_MARGIN
    return [orjson.dumps(terms), message.payload, *job.record_fields(web_id, reader)]
