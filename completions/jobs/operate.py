"""What operators see and do: open jobs, one job in full, cancelling, requeueing, and how much waits
in Redis."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from completions.catalog.entries import make_queue_name
from completions.jobs.connection import Entries
from completions.jobs.limits import MINUTE, LimitsUsed
from completions.jobs.record import JobRecord, redis_name
from completions.jobs.store import AsyncStore, SyncStore

MAX_LISTED = 2000
"""The most open jobs in a list; if there are more, the list says so."""
NEARLY_FULL = 0.9
"""Share of maxmemory above which no job is accepted, so that running jobs have room to end. At
maxmemory itself Redis refuses every write, even a job's end."""
_LISTED: Final = tuple(
    redis_name(name).encode()
    for name in (
        *("state", "kind", "model", "organization_id", "api_key_id", "priority", "created"),
        *("started", "owner", "attempt", "prompt_tokens", "generated", "cancelling", "request_id"),
    )
)
"""Fields of the jobs in a list, by their names in Redis."""
_PRIORITY_STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""What kombu's Redis transport appends to a queue's name for each of its priorities."""


# Jobs --------------------------------------------------------------------------------------------


def list_open_jobs(store: SyncStore) -> tuple[list[JobRecord], int]:
    """List jobs that have not ended, the oldest first, without requests and contexts. Returns them
    and the number of all of them."""
    client, keys = store.client, store.keys
    ids = cast("list[bytes]", client.zrange(keys.open, 0, MAX_LISTED - 1))
    total = client.zcard(keys.open)
    pipeline = client.pipeline(transaction=False)
    for job_id in ids:
        pipeline.hmget(keys.job(job_id.decode()), _LISTED)
    jobs = [
        JobRecord.read(job_id.decode(), dict(zip(_LISTED, values, strict=True)))
        for job_id, values in zip(ids, pipeline.execute(), strict=True)
        if values[0] is not None
    ]
    return sorted((job for job in jobs if not job.has_ended), key=lambda job: job.created), total


def count_queued(store: SyncStore) -> Counter[tuple[str, str]]:
    """Count the queued jobs by model and kind. All open jobs are counted, however many."""
    client, keys = store.client, store.keys
    ids = cast("list[bytes]", client.zrange(keys.open, 0, -1))
    counts = Counter[tuple[str, str]]()
    for first in range(0, len(ids), MAX_LISTED):
        pipeline = client.pipeline(transaction=False)
        for job_id in ids[first : first + MAX_LISTED]:
            pipeline.hmget(keys.job(job_id.decode()), "state", "model", "kind")
        for state, model, kind in pipeline.execute():
            if state == b"queued":
                counts[model.decode(), kind.decode()] += 1
    return counts


def read_job(store: SyncStore, job_id: str) -> JobRecord | None:
    """Read a job; None if it is unknown or has expired."""
    raw = cast("dict[bytes, bytes | None]", store.client.hgetall(store.keys.job(job_id)))
    return JobRecord.read(job_id, raw) if raw else None


def find_jobs(store: SyncStore, text: str) -> list[JobRecord]:
    """Find the job with this id, or else open jobs of the HTTP request with this id."""
    match = read_job(store, text)
    if match is not None:
        return [match]
    return [job for job in list_open_jobs(store)[0] if text and job.request_id == text]


def cancel(store: SyncStore, job_id: str) -> str | None:
    """Cancel a job. Returns the state that it was in; None if Redis does not know it."""
    return _act(store, "cancel", job_id, "operator")


def requeue(store: SyncStore, job_id: str) -> str | None:
    """Take a job from its worker, or publish a queued one again, within seconds; the next attempt
    continues after the last published token. Returns the state that it was in; None if Redis does
    not know it."""
    return _act(store, "requeue", job_id)


def _act(store: SyncStore, script: str, job_id: str, *arguments: str) -> str | None:
    state: bytes | None = store.call(script, job_id, *arguments)
    return state.decode() if state else None


def read_limits_used(
    store: SyncStore, rates: Mapping[int, Mapping[str, int]]
) -> dict[int, LimitsUsed]:
    """Read how much of their limits some API keys use now. `rates` has the limit of each rate that
    is limited, by the ids of the keys."""
    client, keys = store.client, store.keys
    seconds, micros = client.time()
    now = seconds + micros / 1e6
    pipeline = client.pipeline(transaction=False)
    for key_id in rates:
        pipeline.hgetall(keys.limits(key_id))
        pipeline.zcount(keys.busy(key_id), f"({now}", "+inf")
    replies = iter(pipeline.execute())
    used = {}
    for (key_id, limits), bucket, busy in zip(rates.items(), replies, replies, strict=True):
        elapsed = max(0.0, now - float(bucket.get(b"at", now)))
        missing = {
            name: limit - float(bucket.get(name.encode(), limit)) - elapsed * limit / MINUTE
            for name, limit in limits.items()
        }
        used[key_id] = LimitsUsed({name: max(0.0, each) for name, each in missing.items()}, busy)
    return used


# How much waits ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much waits in Redis, and how full it is. Ages in seconds, memory in bytes."""

    open_jobs: int
    """Jobs that have not ended, running ones included."""
    messages: dict[str, int] = field(default_factory=dict)
    """Messages that no worker has taken yet, by model."""
    unsettled: int = 0
    """Ended jobs that SQL does not have yet."""
    unsettled_age: float = 0.0
    """Age of the oldest of them."""
    reconciler_lag: float = 0.0
    """How long ago the reconciler should have checked a job; grows while no background worker
    runs."""
    memory_used: int = 0
    memory_limit: int = 0
    """0 if there is no limit."""

    @property
    def fullness(self) -> float:
        return self.memory_used / (self.memory_limit or float("inf"))


def is_nearly_full(memory: Mapping[str, int]) -> bool:
    """Return whether Redis has too little room for new jobs, according to its INFO memory."""
    return 0 < memory["maxmemory"] * NEARLY_FULL <= memory["used_memory"]


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What decides whether a blocking request or a stream is admitted."""

    jobs: int
    interactive_jobs: int
    bytes: int
    interactive_bytes: int
    memory: Mapping[str, int]
    """Redis's INFO memory."""


async def read_queue_load(store: AsyncStore) -> QueueLoad:
    """Read what decides whether requests are admitted. Raises RedisError or OSError."""
    keys = store.keys
    pipeline = store.client.pipeline(transaction=False)
    pipeline.zcard(keys.open)
    pipeline.scard(keys.depth("interactive"))
    pipeline.hmget(keys.bytes, "all", "interactive")
    pipeline.info("memory")
    jobs, interactive_jobs, sums, memory = await pipeline.execute()
    in_all, interactive = (int(each or 0) for each in sums)
    return QueueLoad(jobs, interactive_jobs, in_all, interactive, memory)


async def read_backlog(store: AsyncStore) -> Backlog:
    """Read how much waits in a shard, without its messages. Raises RedisError or OSError."""
    keys = store.keys
    pipeline = store.client.pipeline(transaction=False)
    pipeline.time()
    pipeline.zcard(keys.open)
    pipeline.zrange(keys.open, 0, 0, withscores=True)
    pipeline.xlen(keys.usage)
    pipeline.xrange(keys.usage, count=1)
    pipeline.info("memory")
    (seconds, micro), open_jobs, due, ended, oldest, memory = await pipeline.execute()
    now = seconds + micro / 1e6
    first = cast("Entries", oldest)
    return Backlog(
        open_jobs=open_jobs,
        unsettled=ended,
        unsettled_age=max(0.0, now - int(first[0][0].split(b"-")[0]) / 1000) if first else 0.0,
        reconciler_lag=max(0.0, now - due[0][1]) if due else 0.0,
        memory_used=memory["used_memory"],
        memory_limit=memory["maxmemory"],
    )


async def read_messages(store: AsyncStore, models: Sequence[str]) -> dict[str, int]:
    """Count the messages of each model that no worker has taken. Raises RedisError or OSError."""
    pipeline = store.client.pipeline(transaction=False)
    for model in models:
        for step in _PRIORITY_STEPS:
            pipeline.llen(store.keys.queue(f"{make_queue_name(model)}{step}"))
    lengths, steps = await pipeline.execute(), len(_PRIORITY_STEPS)
    return {model: sum(lengths[n * steps : (n + 1) * steps]) for n, model in enumerate(models)}


def add_backlogs(backlogs: Sequence[Backlog], messages: dict[str, int]) -> Backlog:
    """Return the backlog of an installation from those of its shards: the memory is that of the
    fullest."""
    fullest = max(backlogs, key=lambda each: each.fullness)
    return Backlog(
        open_jobs=sum(each.open_jobs for each in backlogs),
        messages=messages,
        unsettled=sum(each.unsettled for each in backlogs),
        unsettled_age=max(each.unsettled_age for each in backlogs),
        reconciler_lag=max(each.reconciler_lag for each in backlogs),
        memory_used=fullest.memory_used,
        memory_limit=fullest.memory_limit,
    )
