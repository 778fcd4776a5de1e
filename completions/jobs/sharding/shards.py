"""The shards of an installation: one, unless it spreads its organizations over several.

All keys of an organization's jobs, of its limits and of its budgets lie in one shard, and so on one
server. What belongs to no organization stands in the central Redis, which also has Celery's
messages, or is written to every shard. The only shard of an installation is the central Redis, and
its keys have no number.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import redis
import redis.asyncio
from redis.exceptions import RedisError

from completions.jobs import cluster
from completions.jobs.connection import COMMAND_TIMEOUT, connect, connect_async
from completions.jobs.store import JobStore, SyncStore

logger = logging.getLogger(__name__)
_HEX = re.compile(r"[0-9a-f]{30}([0-9a-f]{2})(?:-\d+)?$")
"""The end of a job's id; that of a batch's line has the line's number besides."""
_Client = TypeVar("_Client", bound=redis.Redis | redis.asyncio.Redis)
_T = TypeVar("_T")


class RedisSettings(Protocol):
    """The settings that say where the keys lie."""

    REDIS_URL: str
    REDIS_URLS: Sequence[str]
    REDIS_CLUSTER: bool
    REDIS_PREFIX: str
    SHARDS: int


@dataclass(frozen=True, slots=True)
class Address:
    """The server of a shard, or of what is central, and the prefix of its keys."""

    url: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the keys of an installation lie."""

    central: Address
    shards: Sequence[Address]
    per_server: int = 1
    """Shards that share a server and its memory, at most."""
    place: str = "one server"

    @classmethod
    def read(cls, settings: RedisSettings) -> "Layout":
        central = Address(settings.REDIS_URL, settings.REDIS_PREFIX)
        count, servers = settings.SHARDS, list(settings.REDIS_URLS) or [settings.REDIS_URL]
        if count == 1 and not settings.REDIS_URLS:
            return cls(central, [central])
        prefixes = [f"{settings.REDIS_PREFIX}{{{number}}}:" for number in range(count)]
        if settings.REDIS_CLUSTER:
            urls = [cluster.make_url(servers, prefix) for prefix in prefixes]
        else:
            urls = [servers[number % len(servers)] for number in range(count)]
        shards = [Address(*each) for each in zip(urls, prefixes, strict=True)]
        place = "a cluster" if settings.REDIS_CLUSTER else f"{len(servers)} servers"
        return cls(central, shards, -(-count // len(servers)), place)

    @property
    def name(self) -> str:
        return f"{len(self.shards)} shards on {self.place}"

    @property
    def is_central_only(self) -> bool:
        return list(self.shards) == [self.central]

    def find(self, organization_id: int) -> Address:
        return self.shards[organization_id % len(self.shards)]

    def connect(self, timeout: float = COMMAND_TIMEOUT) -> "Shards[redis.Redis]":
        """Make clients for threads."""
        return self._connect(lambda url: connect(url, timeout))

    @contextmanager
    def open(self, timeout: float = COMMAND_TIMEOUT) -> Iterator["Shards[redis.Redis]"]:
        """Make clients for threads, and close them after the block."""
        shards = self.connect(timeout)
        try:
            yield shards
        finally:
            for store in (shards.central, *shards):
                store.client.close()

    def connect_async(self) -> "Shards[redis.asyncio.Redis]":
        """Make clients for one event loop."""
        return self._connect(connect_async)

    def _connect(self, make: Callable[[str], _Client]) -> "Shards[_Client]":
        central = JobStore(make(self.central.url), self.central.prefix)
        if self.is_central_only:
            return Shards(central, [central])
        return Shards(central, [JobStore(make(each.url), each.prefix) for each in self.shards])


class Shards(Generic[_Client]):
    """The stores of all shards, and what is central."""

    def __init__(self, central: JobStore[_Client], stores: Sequence[JobStore[_Client]]) -> None:
        self.central = central
        """Locks, failed logins, clients' request ids, last uses of keys, and Celery's messages."""
        self.stores = stores

    def __iter__(self) -> Iterator[JobStore[_Client]]:
        return iter(self.stores)

    def find_by_job(self, job_id: str) -> JobStore[_Client]:
        return self.stores[find_shard(job_id, len(self.stores))]

    def find_by_organization(self, organization_id: int) -> JobStore[_Client]:
        return self.stores[organization_id % len(self.stores)]

    @property
    def broker(self) -> JobStore[_Client] | None:
        """The store of Celery's messages, if it is not the only shard."""
        return None if self.stores[0] is self.central else self.central

    @classmethod
    def make_single(cls, store: JobStore[_Client]) -> "Shards[_Client]":
        return cls(store, [store])


SyncShards = Shards[redis.Redis]


def find_shard(job_id: str, count: int) -> int:
    """Return the number of the shard that a job's id names, of `count`."""
    if count == 1:
        return 0
    match = _HEX.search(job_id)
    return int(match[1], 16) % count if match else 0


def name_shard(row_id: str, organization_id: int, count: int) -> str:
    """Return the id of a new job, or of a batch, with its last byte such that it names the shard of
    its organization."""
    if count == 1:
        return row_id
    drawn = int(row_id[-2:], 16)
    named = drawn - drawn % count + organization_id % count
    return f"{row_id[:-2]}{named if named < 256 else named - count:02x}"


def run_each(shards: SyncShards, run: Callable[[SyncStore], _T]) -> list[_T]:
    """Run something in each shard. Returns the results of those that answer; raises RedisError if
    none does."""
    return _run_all([partial(run, store) for store in shards])


def run_grouped(
    shards: SyncShards, job_ids: Iterable[str], run: Callable[[SyncStore, list[str]], _T]
) -> list[_T]:
    """Run something with the jobs of each shard that has some, as :func:`run_each`."""
    groups: dict[int, list[str]] = {}
    for job_id in job_ids:
        groups.setdefault(find_shard(job_id, len(shards.stores)), []).append(job_id)
    return _run_all([partial(run, shards.stores[n], group) for n, group in groups.items()])


def _run_all(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    results: list[_T] = []
    failure: RedisError | None = None
    for call in calls:
        try:
            results.append(call())
        except RedisError as error:
            if len(calls) > 1:
                logger.warning("a shard does not answer: %s", error)
            failure = error
    if failure is not None and not results:
        raise failure
    return results
