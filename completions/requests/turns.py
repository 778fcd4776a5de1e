"""Runs long checks in threads, with organizations taking turns, and bounds the number of large
bodies in memory. A template and a tokenizer take seconds and much memory for megabytes of text,
before any limit of the API key applies."""

import asyncio
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

_T = TypeVar("_T")
Stop = Callable[[], None]
"""Makes work in a thread end sooner."""

THREADS = max(2, min(8, os.cpu_count() or 1))
LARGE_AT_ONCE = 3
"""Large bodies that may be parsed at the same time, at most one of each organization."""
FILES_AT_ONCE = 2
"""Whole files that may be checked at the same time, which takes minutes; at most one of each
organization."""
UPLOADS_AT_ONCE = 4
"""Uploads whose parts may be joined at the same time, which takes twice the file's size on disk; at
most one of each organization."""
NOBODY = 0
"""The owner of requests without an API key."""


class Turns:
    """At most `at_once` turns at a time, and at most `per_owner` for one owner; owners
    alternate."""

    def __init__(self, at_once: int, per_owner: int) -> None:
        self._free = at_once
        self._per_owner = per_owner
        self._running: Counter[int] = Counter()
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, owner: int) -> None:
        """Wait for a turn. :meth:`give` gives it back."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        self._go_on()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # the turn came too late
                self.give(owner)
            raise

    def give(self, owner: int) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._go_on()

    def count(self, owner: int) -> int:
        """The number of the owner's turns, running and waiting."""
        waiting = self._waiting.get(owner, ())
        return self._running[owner] + sum(not each.done() for each in waiting)

    def _go_on(self) -> None:
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
    """The turns and threads of one event loop."""

    def __init__(self) -> None:
        self.large = Turns(LARGE_AT_ONCE, 1)
        self.files = Turns(FILES_AT_ONCE, 1)
        self.uploads = Turns(UPLOADS_AT_ONCE, 1)
        self._threads = Turns(THREADS, THREADS - 1)
        self._pool = ThreadPoolExecutor(THREADS, "checks")

    async def run(
        self, owner: int, function: Callable[..., _T], *args: Any, stop: Stop = lambda: None
    ) -> _T:
        """Run the function in a thread, which counts as the owner's until it returns. `stop` is
        called if the caller is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        await self._threads.take(owner)
        job = self._pool.submit(copy_context().run, function, *args)

        def give_back(_job: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._threads.give, owner)

        job.add_done_callback(give_back)
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


_of_loops: dict[asyncio.AbstractEventLoop, Checks] = {}


def current() -> Checks:
    """This event loop's checks."""
    loop = asyncio.get_running_loop()
    checks = _of_loops.get(loop)
    if checks is None:
        for closed in [each for each in _of_loops if each.is_closed()]:
            del _of_loops[closed]
        checks = _of_loops[loop] = Checks()
    return checks
