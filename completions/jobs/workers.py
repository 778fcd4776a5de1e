"""Which workers live and what they serve, from their heartbeats; draining and resuming them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import orjson
import redis
import redis.asyncio

STALE_AFTER = 6.0
"""Seconds, three heartbeats, after which a worker counts as silent."""
DRAIN_KEPT = 3600
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
    """Whether it was told to take no new jobs; it does so within some seconds."""

    @property
    def accepting(self) -> bool:
        """Whether it takes new jobs."""
        return bool(self.facts.get("accepting", True))

    @property
    def standing(self) -> Literal["serving", "draining", "drained", "silent"]:
        """Draining is what still has jobs."""
        if self.age > STALE_AFTER:
            return "silent"
        if self.accepting and not self.drain_wanted:
            return "serving"
        return "draining" if self.accepting or self.facts.get("jobs") else "drained"


async def live_workers(client: redis.asyncio.Redis, prefix: str) -> list[WorkerRecord]:
    """Workers whose heartbeat has not expired; forgets the others."""
    names = _sorted(cast("set[bytes]", await client.smembers(f"{prefix}workers")))
    if not names:
        return []
    keys = [f"{prefix}worker:{name}" for name in names]
    beats = cast("list[bytes | None]", await client.mget(keys))
    if dead := [name for name, beat in zip(names, beats, strict=True) if beat is None]:
        await client.srem(f"{prefix}workers", *dead)
    return _records(names, beats)


def watch_workers(client: redis.Redis, prefix: str, heartbeat_ttl: float) -> list[WorkerRecord]:
    """The same for threads, with the age of each heartbeat and the wish to drain."""
    names = _sorted(cast("set[bytes]", client.smembers(f"{prefix}workers")))
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.get(f"{prefix}worker:{name}")
        pipeline.pttl(f"{prefix}worker:{name}")
        pipeline.exists(f"{prefix}drain:{name}")
    replies = pipeline.execute()
    return [
        replace(record, age=max(0.0, heartbeat_ttl - ttl / 1000), drain_wanted=bool(drain))
        for name, beat, ttl, drain in zip(
            names, replies[0::3], replies[1::3], replies[2::3], strict=True
        )
        for record in _records([name], [beat])
    ]


def drain(client: redis.Redis, prefix: str, worker_id: str) -> None:
    """Have a worker take no new jobs, from its next heartbeat on; it finishes those that it has."""
    client.set(f"{prefix}drain:{worker_id}", 1, ex=DRAIN_KEPT)


def resume(client: redis.Redis, prefix: str, worker_id: str) -> None:
    """Have a drained worker take jobs again, from its next heartbeat on."""
    client.delete(f"{prefix}drain:{worker_id}")


def _sorted(members: set[bytes]) -> list[str]:
    return sorted(name.decode() for name in members)


def _records(names: Sequence[str], beats: Sequence[bytes | None]) -> list[WorkerRecord]:
    found = []
    for name, beat in zip(names, beats, strict=True):
        if beat is not None:
            facts = orjson.loads(beat)
            found.append(WorkerRecord(name, facts.pop("model"), facts))
    return found


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """What a live engine worker measured, in Prometheus's text format."""

    id: str
    model: str
    text: str


async def worker_pages(client: redis.asyncio.Redis, prefix: str) -> list[WorkerPage]:
    """Of all live workers. Raises RedisError or OSError."""
    workers = await live_workers(client, prefix)
    if not workers:
        return []
    asked = [f"{prefix}metrics:{worker.id}" for worker in workers]
    texts = cast("list[bytes | None]", await client.mget(asked))
    return [
        WorkerPage(worker.id, worker.model, text.decode())
        for worker, text in zip(workers, texts, strict=True)
        if text is not None
    ]
