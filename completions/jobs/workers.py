"""Live workers and what they serve, by their heartbeats; draining and resuming them."""

import os
import socket
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

import orjson

from completions.jobs.sharding.shards import SyncShards, run_each
from completions.jobs.store import AsyncStore, SyncStore

HEARTBEAT_TTL: Final = 10
"""Seconds after which a worker that stopped beating counts as dead."""
STALE_AFTER = 6.0
"""Seconds, three heartbeats, after which a worker counts as silent."""
DRAIN_KEPT: Final = 3600
"""Seconds that a request to drain outlives its worker's last heartbeat."""


def new_worker_id() -> str:
    """Make the id of this process as a worker: host, process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A live engine worker's last heartbeat."""

    id: str
    model: str
    facts: dict[str, Any]
    age: float = 0.0
    """Seconds since that heartbeat."""
    drain_wanted: bool = False
    """Whether an operator asked it to take no new jobs. It obeys within seconds."""

    @property
    def host(self) -> str:
        return self.id.rsplit("-", 2)[0]  # a name may contain hyphens too

    @property
    def accepting(self) -> bool:
        return bool(self.facts.get("accepting", True))

    @property
    def slots(self) -> int:
        """Sequences that it runs at once; 0 if it has not said."""
        return int(self.facts.get("slots", 0))

    @property
    def standing(self) -> Literal["serving", "draining", "drained", "silent"]:
        """A worker is draining while it still has jobs, and drained after that."""
        if self.age > STALE_AFTER:
            return "silent"
        if self.accepting and not self.drain_wanted:
            return "serving"
        return "draining" if self.accepting or self.facts.get("jobs") else "drained"


def list_workers_sync(store: SyncStore) -> list[WorkerRecord]:
    """List the workers whose heartbeat has not expired; forget the others."""
    return _records(store.call("workers"))


def list_all_workers(shards: SyncShards) -> list[WorkerRecord]:
    """List the workers, which beat in every shard, by the one that knows most of them: a shard that
    was emptied knows none for a while."""
    return max(run_each(shards, list_workers_sync), key=len)


async def list_workers(store: AsyncStore) -> list[WorkerRecord]:
    """List the workers as `list_workers_sync`, for an event loop."""
    return _records(await store.call("workers"))


class LiveModels(NamedTuple):
    """The models that a request would run on."""

    loaded: dict[str, str | None]
    """Those of workers that take jobs, each with the forward pass that one of them uses."""
    standby: set[str]
    """Those that a worker loads once jobs wait for them."""

    def is_cold(self, model: str) -> bool:
        """Return whether a request first waits until the model is loaded."""
        return model in self.standby and model not in self.loaded


async def list_live_models(store: AsyncStore) -> LiveModels:
    names = await store.call(*_ON_STANDBY)
    workers = await list_workers(store)
    return LiveModels(
        {worker.model: worker.facts.get("forward") for worker in workers if worker.accepting},
        _read_names(names),
    )


def list_standby_sync(store: SyncStore) -> set[str]:
    """List the models that a worker loads once jobs wait for them."""
    return _read_names(store.call(*_ON_STANDBY))


_ON_STANDBY: Final = ("on_standby", HEARTBEAT_TTL)


def _read_names(reply: Iterable[bytes]) -> set[str]:
    return {name.decode() for name in reply}


def _records(replies: Iterable[tuple[bytes, bytes, int, int]]) -> list[WorkerRecord]:
    records = []
    for worker_id, beat, ttl, drain_wanted in sorted(replies):
        facts = orjson.loads(beat)
        age = max(0.0, HEARTBEAT_TTL - ttl / 1000)
        model = facts.pop("model")
        records.append(WorkerRecord(worker_id.decode(), model, facts, age, bool(drain_wanted)))
    return records


class Builds:
    """The engine builds of recently live workers, for results that are read after the worker has
    gone."""

    MAX = 1000

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def find(self, store: SyncStore, worker_id: str) -> str | None:
        """Find the build of a worker; None if the worker is gone and its build was never looked
        up."""
        if worker_id not in self._known:
            beat = store.client.get(store.keys.worker(worker_id))
            build = orjson.loads(beat).get("build") if isinstance(beat, bytes) else None
            if build is None:
                return None
            if len(self._known) >= self.MAX:
                self._known.clear()
            self._known[worker_id] = build
        return self._known[worker_id]


def drain(store: SyncStore, worker_id: str) -> None:
    """Make a worker take no new jobs from its next heartbeat on; it finishes those that it has."""
    store.client.set(store.keys.drain(worker_id), 1, ex=DRAIN_KEPT)


def resume(store: SyncStore, worker_id: str) -> None:
    store.client.delete(store.keys.drain(worker_id))


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """The metrics of a live engine worker in Prometheus's text format."""

    id: str
    model: str
    text: str


async def read_metrics_pages(store: AsyncStore) -> list[MetricsPage]:
    """Read the pages of all live workers. Raises RedisError or OSError."""
    workers = await list_workers(store)
    if not workers:
        return []
    replies = await store.client.mget([store.keys.metrics(worker.id) for worker in workers])
    pages = cast("list[bytes | None]", replies)
    return [
        MetricsPage(worker.id, worker.model, page.decode())
        for worker, page in zip(workers, pages, strict=True)
        if page is not None
    ]
