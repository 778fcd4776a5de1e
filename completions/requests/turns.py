"""Checks that take long, by turns of organizations: none keeps the others waiting for all of its
own, and few large bodies are held at a time, however many come.

A template and a tokenizer run over megabytes for seconds, and need hundreds of bytes per token,
before any limit of a key has been looked at: those count jobs.
"""

import asyncio
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

_T = TypeVar("_T")

THREADS = max(2, min(8, os.cpu_count() or 1))
LARGE_AT_ONCE = 3
"""Large bodies that are held as Python's objects until they are checked, each another's."""
NOBODY = 0
"""Whose requests need no key."""


class Turns:
    """So many at once, fewer of one owner, owners in turn. Bound to one event loop."""

    def __init__(self, at_once: int, per_owner: int) -> None:
        self._free = at_once
        self._per_owner = per_owner
        self._running: Counter[int] = Counter()
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, owner: int) -> None:
        """Wait for a turn, which :meth:`give` gives back."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        self._go_on()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # its turn came, too late
                self.give(owner)
            raise

    def give(self, owner: int) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._go_on()

    def _go_on(self) -> None:
        while self._free and self._start_one():
            pass

    def _start_one(self) -> bool:
        for owner, queue in self._waiting.items():
            while queue and queue[0].done():  # its client hung up
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
    """What one event loop has checked elsewhere."""

    def __init__(self) -> None:
        self.large = Turns(LARGE_AT_ONCE, 1)
        self._threads = Turns(THREADS, THREADS - 1)
        self._pool = ThreadPoolExecutor(THREADS, "checks")

    async def run(self, owner: int, function: Callable[..., _T], *args: Any) -> _T:
        """In a thread, which the owner has until the function returns."""
        loop = asyncio.get_running_loop()
        await self._threads.take(owner)
        job = self._pool.submit(copy_context().run, function, *args)

        def give_back(_job: Any) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._threads.give, owner)

        job.add_done_callback(give_back)
        return await to_its_end(asyncio.wrap_future(job))


async def to_its_end(work: Awaitable[_T]) -> _T:
    """Nothing stops a thread: who is cancelled waits for it, so that what it reads stays open."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        with suppress(Exception):
            await working
        raise


_of_loops: dict[asyncio.AbstractEventLoop, Checks] = {}


def current() -> Checks:
    """This event loop's."""
    loop = asyncio.get_running_loop()
    checks = _of_loops.get(loop)
    if checks is None:
        for closed in [each for each in _of_loops if each.is_closed()]:
            del _of_loops[closed]
        checks = _of_loops[loop] = Checks()
    return checks
