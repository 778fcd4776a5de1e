"""How much waits in Redis, and how full it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import redis.asyncio

from completions.jobs.connection import Entries

_PRIORITY_STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""What kombu's Redis transport appends to a queue's name for each of its priorities."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Counts; ages in seconds, bytes of memory."""

    open_jobs: int
    """Jobs that have not ended, running ones too."""
    messages: dict[str, int] = field(default_factory=dict)
    """Of each model, those that no worker has taken yet."""
    unsettled: int = 0
    """Ended jobs that SQL does not have yet."""
    unsettled_age: float = 0.0
    """Of the oldest."""
    reconciler_lag: float = 0.0
    """How long ago the reconciler should have looked at a job; grows while no CPU worker runs."""
    memory_used: int = 0
    memory_limit: int = 0
    """0: none."""


NEARLY_FULL = 0.9
"""Of maxmemory: from here on nothing new is accepted, so that what runs has room to end. At
maxmemory itself nothing could be written any more, not even an end."""


def is_nearly_full(memory: Mapping[str, int]) -> bool:
    """What INFO says of the memory."""
    return 0 < memory["maxmemory"] * NEARLY_FULL <= memory["used_memory"]


async def read_backlog(client: redis.asyncio.Redis, prefix: str, models: Sequence[str]) -> Backlog:
    """Raises RedisError or OSError."""
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.zcard(f"{prefix}open")
    pipeline.zrange(f"{prefix}open", 0, 0, withscores=True)
    pipeline.xlen(f"{prefix}usage")
    pipeline.xrange(f"{prefix}usage", count=1)
    pipeline.info("memory")
    for model in models:
        for step in _PRIORITY_STEPS:
            pipeline.llen(f"{prefix}gen.{model}{step}")
    (seconds, micro), open_jobs, due, unsettled, oldest, memory, *lengths = await pipeline.execute()
    now = seconds + micro / 1e6
    first = cast("Entries", oldest)
    steps = len(_PRIORITY_STEPS)
    return Backlog(
        open_jobs=open_jobs,
        messages={
            model: sum(lengths[n * steps : (n + 1) * steps]) for n, model in enumerate(models)
        },
        unsettled=unsettled,
        unsettled_age=max(0.0, now - int(first[0][0].split(b"-")[0]) / 1000) if first else 0.0,
        reconciler_lag=max(0.0, now - due[0][1]) if due else 0.0,
        memory_used=memory["used_memory"],
        memory_limit=memory["maxmemory"],
    )
