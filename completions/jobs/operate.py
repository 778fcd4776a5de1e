"""What operators see and do: open jobs, one job in full, cancelling, requeueing, and how much waits
in Redis."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import redis
import redis.asyncio

from completions.jobs.connection import Entries
from completions.jobs.record import JobRecord, Keys
from completions.jobs.scripts import Scripts

MOST_LISTED = 2000
"""Open jobs that are read for a list, which then says that there are more."""
NEARLY_FULL = 0.9
"""Share of maxmemory from which no job is accepted, so that running ones have room to end. At
maxmemory itself Redis refuses every write, even a job's end."""
_LISTED: Final = (
    b"state", b"kind", b"model", b"organization", b"key", b"priority", b"created", b"started",
    b"owner", b"attempt", b"prompt_tokens", b"generated", b"cancel", b"request_id",
)  # fmt: skip
_PRIORITY_STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""What kombu's Redis transport appends to a queue's name for each of its priorities."""


# Jobs --------------------------------------------------------------------------------------------


def open_jobs(client: redis.Redis, prefix: str) -> tuple[list[JobRecord], int]:
    """Jobs that have not ended, the oldest first, without requests and views; and how many there
    are in all."""
    keys = Keys(prefix)
    ids = cast("list[bytes]", client.zrange(keys.open, 0, MOST_LISTED - 1))
    total = client.zcard(keys.open)
    pipeline = client.pipeline(transaction=False)
    for job_id in ids:
        pipeline.hmget(keys.job(job_id.decode()), _LISTED)
    found = [
        JobRecord.read(job_id.decode(), dict(zip(_LISTED, values, strict=True)))
        for job_id, values in zip(ids, pipeline.execute(), strict=True)
        if values[0] is not None
    ]
    return sorted((job for job in found if not job.ended), key=lambda job: job.created), total


def queue_depths(jobs: Sequence[JobRecord]) -> Counter[str]:
    """Queued jobs by kind."""
    return Counter(job.kind for job in jobs if job.state == "queued")


def details(client: redis.Redis, prefix: str, job_id: str) -> JobRecord | None:
    """A job; None if it is unknown or has expired."""
    raw = cast("dict[bytes, bytes | None]", client.hgetall(Keys(prefix).job(job_id)))
    return JobRecord.read(job_id, raw) if raw else None


def find(client: redis.Redis, prefix: str, text: str) -> list[JobRecord]:
    """The job with this id, or else open jobs of the HTTP request with this id."""
    found = details(client, prefix, text)
    if found is not None:
        return [found]
    return [job for job in open_jobs(client, prefix)[0] if text and job.request_id == text]


def cancel(client: redis.Redis, prefix: str, job_id: str) -> str | None:
    """Cancel a job. Returns the state that it was in; None if Redis does not know it."""
    return _state(Scripts(client, prefix).call("cancel", [job_id]))


def requeue(client: redis.Redis, prefix: str, job_id: str) -> str | None:
    """Take a job from its worker, or publish a queued one again, within seconds; the next attempt
    continues after the last published token. Returns the state that it was in; None if Redis does
    not know it."""
    return _state(Scripts(client, prefix).call("requeue", [job_id]))


def _state(reply: bytes | None) -> str | None:
    return reply.decode() if reply else None


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
    """How long ago the reconciler should have looked at a job; grows while no CPU worker runs."""
    memory_used: int = 0
    memory_limit: int = 0
    """0 if there is no limit."""


def is_nearly_full(memory: Mapping[str, int]) -> bool:
    """Whether Redis has too little room for new jobs, by its INFO of memory."""
    return 0 < memory["maxmemory"] * NEARLY_FULL <= memory["used_memory"]


async def read_backlog(client: redis.asyncio.Redis, prefix: str, models: Sequence[str]) -> Backlog:
    """Raises RedisError or OSError."""
    keys = Keys(prefix)
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.zcard(keys.open)
    pipeline.zrange(keys.open, 0, 0, withscores=True)
    pipeline.xlen(keys.usage)
    pipeline.xrange(keys.usage, count=1)
    pipeline.info("memory")
    for model in models:
        for step in _PRIORITY_STEPS:
            pipeline.llen(keys.queue(f"gen.{model}{step}"))
    (seconds, micro), open_jobs, due, ended, oldest, memory, *lengths = await pipeline.execute()
    now = seconds + micro / 1e6
    first = cast("Entries", oldest)
    steps = len(_PRIORITY_STEPS)
    return Backlog(
        open_jobs=open_jobs,
        messages={
            model: sum(lengths[n * steps : (n + 1) * steps]) for n, model in enumerate(models)
        },
        unsettled=ended,
        unsettled_age=max(0.0, now - int(first[0][0].split(b"-")[0]) / 1000) if first else 0.0,
        reconciler_lag=max(0.0, now - due[0][1]) if due else 0.0,
        memory_used=memory["used_memory"],
        memory_limit=memory["maxmemory"],
    )
