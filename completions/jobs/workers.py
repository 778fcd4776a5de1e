"""Which workers live and what they serve, from their heartbeats."""

from dataclasses import dataclass
from typing import Any, cast

import orjson
import redis.asyncio


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A live engine worker's last heartbeat."""

    id: str
    model: str
    facts: dict[str, Any]


async def live_workers(client: redis.asyncio.Redis, prefix: str) -> list[WorkerRecord]:
    """Workers whose heartbeat has not expired; forgets the others."""
    members = cast("set[bytes]", await client.smembers(f"{prefix}workers"))
    names = sorted(name.decode() for name in members)
    if not names:
        return []
    beats = await client.mget([f"{prefix}worker:{name}" for name in names])
    dead = [name for name, beat in zip(names, beats, strict=True) if beat is None]
    if dead:
        await client.srem(f"{prefix}workers", *dead)
    found = []
    for name, beat in zip(names, beats, strict=True):
        if beat is not None:
            facts = orjson.loads(beat)
            found.append(WorkerRecord(name, facts.pop("model"), facts))
    return found
