"""Live workers and what they serve, by their heartbeats; draining and resuming them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

import orjson
import redis
import redis.asyncio

from completions.jobs.record import Keys

HEARTBEAT_TTL: Final = 10
"""Seconds after which a worker that stopped beating counts as dead."""
STALE_AFTER = 6.0
"""Seconds, three heartbeats, after which a worker counts as silent."""
DRAIN_KEPT: Final = 3600
"""Seconds that the wish to drain outlives its worker's last heartbeat."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A live engine worker's last heartbeat."""

    id: str
    model: str
    facts: dict[str, Any]
    age: float = 0.0
    """Seconds since that heartbeat."""
    drain_wanted: bool = False
    """Whether an operator wants it to take no new jobs, which it follows within seconds."""

    @property
    def accepting(self) -> bool:
        """Whether it takes new jobs."""
        return bool(self.facts.get("accepting", True))

    @property
    def standing(self) -> Literal["serving", "draining", "drained", "silent"]:
        """A worker is draining while it still has jobs, and drained after that."""
        if self.age > STALE_AFTER:
            return "silent"
        if self.accepting and not self.drain_wanted:
            return "serving"
        return "draining" if self.accepting or self.facts.get("jobs") else "drained"


async def live_workers(client: redis.asyncio.Redis, prefix: str) -> list[WorkerRecord]:
    """Workers whose heartbeat has not expired; forgets the others."""
    keys = Keys(prefix)
    ids = _sorted(cast("set[bytes]", await client.smembers(keys.workers)))
    if not ids:
        return []
    beats = cast("list[bytes | None]", await client.mget([keys.worker(each) for each in ids]))
    if dead := [each for each, beat in zip(ids, beats, strict=True) if beat is None]:
        await client.srem(keys.workers, *dead)
    return _records(ids, beats)


def watch_workers(client: redis.Redis, prefix: str) -> list[WorkerRecord]:
    """The same for threads, with the age of each heartbeat and the wish to drain."""
    keys = Keys(prefix)
    ids = _sorted(cast("set[bytes]", client.smembers(keys.workers)))
    pipeline = client.pipeline(transaction=False)
    for each in ids:
        pipeline.get(keys.worker(each))
        pipeline.pttl(keys.worker(each))
        pipeline.exists(keys.drain(each))
    replies = pipeline.execute()
    return [
        replace(record, age=max(0.0, HEARTBEAT_TTL - ttl / 1000), drain_wanted=bool(drain))
        for each, beat, ttl, drain in zip(
            ids, replies[0::3], replies[1::3], replies[2::3], strict=True
        )
        for record in _records([each], [beat])
    ]


def drain(client: redis.Redis, prefix: str, worker_id: str) -> None:
    """Make a worker take no new jobs from its next heartbeat on; it finishes those that it has."""
    client.set(Keys(prefix).drain(worker_id), 1, ex=DRAIN_KEPT)


def resume(client: redis.Redis, prefix: str, worker_id: str) -> None:
    """Make a drained worker take jobs again from its next heartbeat on."""
    client.delete(Keys(prefix).drain(worker_id))


def _sorted(members: set[bytes]) -> list[str]:
    return sorted(each.decode() for each in members)


def _records(ids: Sequence[str], beats: Sequence[bytes | None]) -> list[WorkerRecord]:
    found = []
    for each, beat in zip(ids, beats, strict=True):
        if beat is not None:
            facts = orjson.loads(beat)
            found.append(WorkerRecord(each, facts.pop("model"), facts))
    return found


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """The metrics of a live engine worker in Prometheus's text format."""

    id: str
    model: str
    text: str


async def worker_pages(client: redis.asyncio.Redis, prefix: str) -> list[WorkerPage]:
    """The pages of all live workers. Raises RedisError or OSError."""
    workers = await live_workers(client, prefix)
    if not workers:
        return []
    keys = Keys(prefix)
    found = await client.mget([keys.metrics(worker.id) for worker in workers])
    texts = cast("list[bytes | None]", found)
    return [
        WorkerPage(worker.id, worker.model, text.decode())
        for worker, text in zip(workers, texts, strict=True)
        if text is not None
    ]
