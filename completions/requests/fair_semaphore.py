"""Runs long checks in threads, shared fairly among organizations, and bounds the number of large
bodies in memory. A template and a tokenizer take seconds and much memory for megabytes of text,
before any limit of the API key applies."""

import asyncio
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

from completions.grammars import Validator

_T = TypeVar("_T")
Stop = Callable[[], None]
"""Makes work in a thread end sooner."""

THREADS = max(2, min(8, os.cpu_count() or 1))
MAX_LARGE = 3
"""Large bodies that may be parsed at the same time, at most one of each organization."""
MAX_FILES = 2
"""Whole files that may be checked at the same time, which takes minutes; at most one of each
organization."""
MAX_UPLOADS = 4
"""Uploads whose parts may be joined at the same time, which takes twice the file's size on disk; at
most one of each organization."""
NOBODY = 0
"""The owner of requests without an API key."""


class FairSemaphore:
    """Fair semaphore: at most `limit` holders, and at most `per_owner` of one owner; owners
    alternate."""

    def __init__(self, limit: int, per_owner: int) -> None:
        self._free = limit
        self._per_owner = per_owner
        self._running: Counter[int] = Counter()
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, owner: int) -> None:
        """Wait for a turn. :meth:`release` gives it back."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        self._start_waiting()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # the turn came too late
                self.release(owner)
            raise

    def release(self, owner: int) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._start_waiting()

    def count(self, owner: int) -> int:
        """Return the number of the owner's turns, running and waiting."""
        waiting = self._waiting.get(owner, ())
        return self._running[owner] + sum(not each.done() for each in waiting)

    def _start_waiting(self) -> None:
        while self._free and self._start_one():
            pass

    def _start_one(self) -> bool:
        for owner, queue in self._waiting.items():
            while queue and queue[0].done():  # the client hung up
                queue.popleft()
            if queue and self._running[owner] >= self._per_owner:
                continue
            if queue:
                self._free -= 1
                self._running[owner] += 1
                queue.popleft().set_result(None)
                self._waiting.move_to_end(owner)
            if not queue:
                del self._waiting[owner]
            return True
        return False


class Checks:
    """The semaphores and threads of one event loop, and the validator that it uses."""

    def __init__(self, validator: Validator) -> None:
        self.validator = validator
        self.large = FairSemaphore(MAX_LARGE, 1)
        self.files = FairSemaphore(MAX_FILES, 1)
        self.uploads = FairSemaphore(MAX_UPLOADS, 1)
        self._threads = FairSemaphore(THREADS, THREADS - 1)
        self._pool = ThreadPoolExecutor(THREADS, "checks")

    async def run(
        self, owner: int, function: Callable[..., _T], *args: object, stop: Stop = lambda: None
    ) -> _T:
        """Run the function in a thread, which counts as the owner's until it returns. `stop` is
        called if the caller is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        await self._threads.acquire(owner)
        job = self._pool.submit(copy_context().run, function, *args)

        def release(_job: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._threads.release, owner)

        job.add_done_callback(release)
        return await to_its_end(asyncio.wrap_future(job), stop)


async def to_its_end(work: Awaitable[_T], stop: Stop = lambda: None) -> _T:
    """Await work in a thread. A cancelled caller calls `stop` and waits too, so that the files that
    the thread reads stay open."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop()
        with suppress(Exception):
            await working
        raise
