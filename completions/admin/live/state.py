"""The live state: workers and open jobs from Redis, models from models.toml.

While Redis is down, pages still work and report it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from django.conf import settings
from redis.exceptions import RedisError

from completions.catalog import model_files
from completions.jobs import operate
from completions.jobs.record import JobRecord
from completions.jobs.sharding.shards import Layout, SyncShards, run_each
from completions.jobs.workers import WorkerRecord, list_all_workers, list_standby_sync

_TIMEOUT = 2.0
UNREACHABLE = "Redis does not answer: the queue is unknown, and requests are refused."


class UnreachableError(Exception):
    """Redis does not answer."""


@dataclass(frozen=True, slots=True)
class Live:
    """The state in Redis at one moment."""

    reachable: bool = True
    workers: Sequence[WorkerRecord] = ()
    jobs: Sequence[JobRecord] = ()
    open_in_all: int = 0
    """Number of open jobs; `jobs` may hold only the first of them."""
    queued: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of queued jobs by model and kind."""
    standby: Collection[str] = ()
    """Models that a worker loads once jobs wait for them."""

    def count_queued(self, model: str) -> int:
        return sum(count for (of, _), count in self.queued.items() if of == model)

    @property
    def count_queued_by_kind(self) -> Counter[str]:
        by_kind = Counter[str]()
        for (_, kind), count in self.queued.items():
            by_kind[kind] += count
        return by_kind

    @property
    def running(self) -> int:
        """The number of sequences running in all engines."""
        return sum(int(worker.facts.get("running", 0)) for worker in self.workers)

    @property
    def slots(self) -> int:
        return sum(count_slots(worker) for worker in self.workers)

    @property
    def warnings(self) -> list[str]:
        """Problems that an operator should see first."""
        if not self.reachable:
            return [UNREACHABLE]
        messages = []
        for entry in model_files.load_catalog():
            of_model = [worker for worker in self.workers if worker.model == entry.id]
            if entry.id in self.standby:
                continue
            if not of_model:
                messages.append(f"No worker serves {entry.id}: its requests wait or are refused.")
            elif not any(worker.accepting for worker in of_model):
                messages.append(f"All workers of {entry.id} are drained: its requests wait.")
        messages += [
            f"Worker {worker.id} has sent no heartbeat for {worker.age:.0f} s."
            for worker in self.workers
            if worker.standing == "silent"
        ]
        return messages


@cache
def _connect() -> SyncShards:
    return Layout.read(settings).connect(timeout=_TIMEOUT)


@contextmanager
def open_shards() -> Iterator[SyncShards]:
    """Yield this process's shards. Raises UnreachableError if a command in the block fails."""
    try:
        yield _connect()
    except (RedisError, OSError) as error:
        raise UnreachableError(UNREACHABLE) from error


def read() -> Live:
    """Read the live state; `reachable` is false if Redis does not answer."""
    try:
        with open_shards() as shards:
            workers = list_all_workers(shards)
            standby = set().union(*run_each(shards, list_standby_sync))
            listed = run_each(shards, operate.list_open_jobs)
            queued = sum(run_each(shards, operate.count_queued), Counter[tuple[str, str]]())
    except UnreachableError:
        return Live(reachable=False)
    jobs = sorted((job for each, _ in listed for job in each), key=lambda job: job.created)
    return Live(True, workers, jobs, sum(total for _, total in listed), queued, standby)


def count_slots(worker: WorkerRecord) -> int:
    entry = model_files.load_catalog().get(worker.model)
    return worker.slots or (entry.max_sequences if entry else 0)
