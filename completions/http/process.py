"""What a web process keeps open from its start to its end, and its requests share."""

import asyncio
import logging
import socket
import uuid
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest
from redis.exceptions import RedisError

from completions.accounts import last_use
from completions.accounts.keys import KeyRing
from completions.database.release import run_and_release
from completions.exceptions import APIError
from completions.http.socket_turns import KeptTurns, OpenSockets
from completions.http.web_shard import WebShard
from completions.jobs.operate import (
    Backlog,
    QueueLoad,
    add_backlogs,
    read_backlog,
    read_messages,
    read_queue_load,
)
from completions.jobs.record import Canceller
from completions.jobs.rids import Rids
from completions.jobs.sharding.resharding import require_layout
from completions.jobs.sharding.shards import Layout, find_shard
from completions.jobs.submit import Broker
from completions.jobs.workers import (
    LiveModels,
    MetricsPage,
    list_live_models,
    read_metrics_pages,
)
from completions.requests.fair_semaphore import Checks
from completions.requests.validation import make_validator
from completions.usage import refusals

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
NOTE_INTERVAL = 5.0
"""Seconds between two times when the last uses of API keys are noted."""
DRAIN_SECONDS = 8.0
"""Seconds for which streams go on after SIGTERM. Together with the 10 s between keep-alives this is
less than the 20 s that uvicorn gives open responses."""


class WebProcess:
    """The state of a web process: connections to Redis, event readers, leases, API keys, threads
    and validator. The lifespan makes it (`project/server/gateway.py`) and puts it into the scope of
    each request, where `find_process` finds it."""

    def __init__(self) -> None:
        self.web_id = f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        self.key_ring = KeyRing()
        self.refusals = refusals.RefusalCounter()
        self.kept_turns = KeptTurns()
        self.sockets = OpenSockets(settings.MAX_WEB_SOCKETS_PER_KEY)
        layout = Layout.read(settings)
        self.redis = layout.connect_async()
        self.rids = Rids(self.redis.central)
        broker = None if self.redis.broker is None else Broker(self.redis.broker)
        self.shards = [
            WebShard(store, address, self.web_id, self.key_ring.clear, broker)
            for store, address in zip(self.redis, layout.shards, strict=True)
        ]
        self.validator = make_validator()
        self.checks = Checks(self.validator)
        self.readiness: asyncio.Task[dict[str, str]] | None = None
        """The last run of the checks of /readyz."""
        self.is_migrated = False
        """Whether all migrations were applied once: nobody reverts them under a running server."""
        self._tasks: set[asyncio.Task[object]] = set()
        self.is_closing = False
        """Whether open streams should end now with an error, before the server cuts them."""

    def find_shard_by_organization(self, organization_id: int) -> WebShard:
        return self.shards[organization_id % len(self.shards)]

    def find_shard_by_job(self, job_id: str) -> WebShard:
        return self.shards[find_shard(job_id, len(self.shards))]

    def drain(self) -> None:
        """Note a SIGTERM: `is_closing` becomes true after DRAIN_SECONDS."""
        asyncio.get_running_loop().call_later(DRAIN_SECONDS, self._close_streams)

    def _close_streams(self) -> None:
        self.is_closing = True

    @classmethod
    async def start(cls) -> "WebProcess":
        """Return a process of the running event loop that has its lease and reads events. Raises
        LayoutError."""
        with suppress(RedisError, OSError):
            await asyncio.to_thread(_check_layout)
        process = cls()
        with suppress(RedisError, OSError):
            await process.ping()
        process.begin()
        return process

    def begin(self) -> None:
        for shard in self.shards:
            self.spawn(shard.reader.run())
            self.spawn(shard.reader.watch())
            self.spawn(shard.reader.blocking_requests.watch())
            self.spawn(shard.keep_lease())
        self.spawn(self._keep_noting_use())
        self.spawn(self._keep_refusals())

    def spawn(self, coroutine: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
        """Run a coroutine to its end, whether or not somebody awaits it. A failure is logged."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return task

    async def cancel_job(self, job_id: str) -> None:
        """Cancel a job whose client hung up, or whose stream this process ends before it stops;
        repeat until Redis answers. Nothing else would end the job, because this process's lease
        lives on."""
        canceller: Canceller = "web" if self.is_closing else "hang-up"
        while True:
            try:
                await self.find_shard_by_job(job_id).submission.cancel(job_id, canceller)
            except (RedisError, OSError):
                await asyncio.sleep(1.0)
            else:
                return

    def _settle(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, APIError):
            logger.error("a background task failed", exc_info=error)

    async def _keep_noting_use(self) -> None:
        while True:
            try:
                await last_use.note(self.redis.central, self.key_ring.take_used())
            except (RedisError, OSError) as error:
                logger.warning("cannot note the use of API keys: %s", error)
            await asyncio.sleep(NOTE_INTERVAL)

    async def _keep_refusals(self) -> None:
        while True:
            await asyncio.sleep(refusals.STORE_INTERVAL)
            await self.store_refusals()

    async def store_refusals(self) -> None:
        """Write what the counter holds to SQL. Without SQL, the counter holds it longer."""
        if not (counts := self.refusals.take()):
            return
        try:
            await run_and_release(partial(refusals.store, counts))
        except (OperationalError, InterfaceError) as error:
            self.refusals.put_back(counts)
            logger.warning("cannot store counts of refused requests yet: %s", error)
        except DatabaseError:  # it would fail again, and hold up all later counts
            logger.exception("counts of refused requests are lost")

    async def measure_queue(self) -> QueueLoad:
        """Return how full the queue is, in the shard with the fewest jobs. Raises RedisError or
        OSError if no shard answers."""
        loads = await _ask_all(read_queue_load(store) for store in self.redis)
        return min(loads, key=lambda load: load.jobs)

    async def list_live_models(self) -> LiveModels:
        """Return the models that workers serve, which beat in every shard; one that was emptied
        knows fewer for a while. Raises RedisError or OSError if no shard answers."""
        listed = await _ask_all(list_live_models(store) for store in self.redis)
        return max(listed, key=lambda live: len(live.loaded) + len(live.standby))

    async def read_metrics_pages(self) -> Sequence[MetricsPage]:
        """Read the pages of the live workers. Raises RedisError or OSError if no shard answers."""
        return max(await _ask_all(read_metrics_pages(store) for store in self.redis), key=len)

    async def measure_backlog(self, models: Sequence[str]) -> Backlog:
        """Return how much waits in all shards that answer, and at the broker. Raises RedisError or
        OSError."""
        backlogs = await _ask_all(read_backlog(store) for store in self.redis)
        return add_backlogs(backlogs, await read_messages(self.redis.central, models))

    async def ping(self) -> None:
        """Raise RedisError or OSError when no shard answers or takes writes (maxmemory), or the
        broker does not answer."""
        await _ask_all(shard.submission.renew_lease() for shard in self.shards)
        if (broker := self.redis.broker) is not None:
            await broker.client.exists(broker.keys.keys)

    async def close(self) -> None:
        """End the process. Without its lease, the jobs that clients wait for end."""
        with suppress(RedisError, OSError):
            await _ask_all(shard.submission.drop_lease() for shard in self.shards)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store_refusals()
        try:
            for shard in self.shards:
                await shard.close()
            await self.redis.central.client.aclose()
        finally:
            self.validator.close()


def find_process(request: HttpRequest) -> WebProcess:
    """Return the process that serves a request."""
    process: WebProcess = request.scope["state"]["process"]  # type: ignore[attr-defined] # ASGI's
    return process


def _check_layout() -> None:
    layout = Layout.read(settings)
    with layout.open() as shards:
        require_layout(layout, shards)


async def _ask_all(asked: Iterable[Awaitable[_T]]) -> list[_T]:
    """Return what the shards that answer reply, at least one of them. Raises RedisError or OSError
    if none does."""
    replies = await asyncio.gather(*asked, return_exceptions=True)
    answers = [reply for reply in replies if not isinstance(reply, BaseException)]
    for reply in replies:
        unanswered = isinstance(reply, RedisError | OSError)
        if isinstance(reply, BaseException) and not (answers and unanswered):
            raise reply
    return answers
