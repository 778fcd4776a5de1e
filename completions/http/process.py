"""What a web process keeps open from its start to its end, and its requests share."""

import asyncio
import logging
import socket
import uuid
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import TypeVar

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest
from redis.exceptions import RedisError

from completions.accounts import last_use
from completions.accounts.keys import KeyRing
from completions.exceptions import APIError
from completions.jobs.connection import connect_async
from completions.jobs.follow import EventReader
from completions.jobs.limits import ByteBounds
from completions.jobs.operate import QueueLoad, is_nearly_full, read_queue_load
from completions.jobs.record import Canceller
from completions.jobs.rids import Rids
from completions.jobs.store import JobStore
from completions.jobs.submit import WEB_LEASE, Submission
from completions.jobs.workers import LiveModels, list_live_models
from completions.models.release import run_and_release
from completions.requests.fair_semaphore import Checks
from completions.requests.validation import make_validator
from completions.usage import refusals

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
DRAIN_SECONDS = 8.0
"""Seconds for which streams go on after SIGTERM. Together with the 10 s between keep-alives this is
less than the 20 s that uvicorn gives open responses."""


class WebProcess:
    """The state of a web process: connections to Redis, event reader, lease, API keys, threads and
    validator. The lifespan makes it (`project/server/gateway.py`) and puts it into the scope of
    each request, where `find_process` finds it."""

    def __init__(self) -> None:
        self.web_id = f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        self.key_ring = KeyRing()
        self.refusals = refusals.RefusalCounter()
        self.store = JobStore(connect_async(settings.REDIS_URL), settings.REDIS_PREFIX)
        self.rids = Rids(self.store)
        self.submission = Submission(self.store, self.web_id)
        self.reader = EventReader(
            settings.REDIS_URL, settings.REDIS_PREFIX, self.web_id, self.key_ring.clear
        )
        self.validator = make_validator()
        self.checks = Checks(self.validator)
        self.readiness: asyncio.Task[dict[str, str]] | None = None
        """The last run of the checks of /readyz."""
        self.is_migrated = False
        """Whether all migrations were applied once: nobody reverts them under a running server."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._closing_at = float("inf")
        self.byte_bounds = make_byte_bounds(0)
        self.is_full = False
        """Whether Redis has too little room for new jobs."""

    @property
    def is_closing(self) -> bool:
        """Whether open streams should end now with an error, before the server cuts them."""
        return asyncio.get_running_loop().time() >= self._closing_at

    def drain(self) -> None:
        """Note a SIGTERM: `is_closing` becomes true after DRAIN_SECONDS."""
        self._closing_at = asyncio.get_running_loop().time() + DRAIN_SECONDS

    @classmethod
    async def start(cls) -> "WebProcess":
        """Return a process of the running event loop that has its lease and reads events."""
        process = cls()
        with suppress(RedisError, OSError):
            await process.submission.renew_lease()
        process.begin()
        return process

    def begin(self) -> None:
        self.spawn(self.reader.run())
        self.spawn(self.reader.watch())
        self.spawn(self.reader.blocking_requests.watch())
        self.spawn(self._keep_lease())
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
                await self.submission.cancel(job_id, canceller)
            except (RedisError, OSError):
                await asyncio.sleep(1.0)
            else:
                return

    def _settle(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, APIError):
            logger.error("a background task failed", exc_info=error)

    async def _keep_lease(self) -> None:
        """Renew the lease. Jobs of a web process whose lease expires are cancelled."""
        while True:
            try:
                await self.submission.renew_lease()
                memory = await self.store.client.info("memory")
                self.is_full = is_nearly_full(memory)
                self.byte_bounds = make_byte_bounds(memory["maxmemory"])
                await last_use.note(self.store, self.key_ring.take_used())
            except (RedisError, OSError) as error:
                logger.warning("cannot renew the lease: %s", error)
            await asyncio.sleep(WEB_LEASE / 3)

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
        """Return how full the queue is. Raises RedisError or OSError."""
        return await read_queue_load(self.store)

    async def list_live_models(self) -> LiveModels:
        """Return the models that workers serve. Raises RedisError or OSError."""
        return await list_live_models(self.store)

    async def ping(self) -> None:
        """Raise RedisError or OSError when Redis does not answer or refuses writes (maxmemory)."""
        await self.submission.renew_lease()

    async def close(self) -> None:
        """End the process. Without its lease, the jobs that clients wait for end."""
        with suppress(RedisError, OSError):
            await self.submission.drop_lease()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store_refusals()
        try:
            await self.reader.close()
            await self.store.client.aclose()
        finally:
            self.validator.close()


def find_process(request: HttpRequest) -> WebProcess:
    """Return the process that serves a request."""
    process: WebProcess = request.scope["state"]["process"]  # type: ignore[attr-defined] # ASGI's
    return process


def make_byte_bounds(memory_limit: int) -> ByteBounds:
    """Return the bounds of a Redis whose maxmemory is `memory_limit` bytes."""
    of_key = settings.MAX_QUEUED_BYTES_PER_KEY
    return ByteBounds.derive(memory_limit, settings.MAX_QUEUED_BYTES, of_key)
