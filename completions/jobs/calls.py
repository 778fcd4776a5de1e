"""Calls: they want nothing of their job but its whole result, once it has ended.

To read along, as streams do, would take an XREAD of everybody's streams for each step of theirs. So
whoever ends such a job says so in the control stream of its web process (`ending.lua`), with all
events of the job where they are few. Others are read then.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from completions.jobs.connection import COMMAND_TIMEOUT, Line, RawEntries, bounded
from completions.jobs.events import EndEvent, Event, decode
from completions.jobs.gathering import Gathering

LOOK = 1.0
"""Seconds after which the jobs are looked at themselves: one may have been ended by a process of an
older version, which tells nobody."""
PAGE = 64
"""Entries that are read at a time, so that a long result does not hold up everybody's streams."""
_ENDED = (b"completed", b"failed", b"cancelled")


class ReaderLostError(Exception):
    """Redis cannot be read; the follower should tell its client at once."""


class Calls:
    """Bound to one event loop. Each call learns once that its job has ended."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._line = Line(client)
        self._looking = Line(client)
        self._prefix = prefix
        self._waiting: dict[str, asyncio.Future[Sequence[bytes] | Exception]] = {}
        self._pages: Gathering[tuple[str, bytes], RawEntries] = Gathering(self._read)

    def expect(self, job_id: str) -> None:
        """Somebody will wait for this job, which does not exist yet."""
        self._waiting[job_id] = asyncio.get_running_loop().create_future()

    def forget(self, job_id: str) -> None:
        """Nobody will wait for it."""
        self._waiting.pop(job_id, None)

    def ended(self, job_id: str, entries: Sequence[bytes] = ()) -> None:
        """With all of its events, or none that are to be read. It may have been forgotten."""
        if job_id in self._waiting:
            _tell(self._waiting[job_id], entries)

    def fail(self, error: Exception) -> None:
        """The ends of some may have been missed."""
        for waiting in self._waiting.values():
            _tell(waiting, error)

    async def result(self, job_id: str) -> list[Event]:
        """All events of a job that was expected, once it has ended. Raises ReaderLostError."""
        try:
            told = await self._waiting[job_id]
        finally:
            self.forget(job_id)
        if isinstance(told, Exception):
            raise ReaderLostError from told
        events = [decode(data) for data in told] if told else await self._read_all(job_id)
        if not events or not isinstance(events[-1], EndEvent):
            raise ReaderLostError  # Redis came back without the end
        return events

    async def _read_all(self, job_id: str) -> list[Event]:
        events: list[Event] = []
        after = b"-"
        while True:
            try:
                entries = await self._pages.do((job_id, after))
            except (RedisError, OSError) as error:
                raise ReaderLostError from error
            events += [decode(data) for _, (_, data) in entries]
            if len(entries) < PAGE:
                return events
            after = b"(" + entries[-1][0]

    async def watch(self) -> None:
        """Look after the calls that wait, for ever."""
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._look([job_id for job_id, it in self._waiting.items() if not it.done()])
            except (RedisError, OSError):
                continue  # the reader has met the same, and told them

    async def _look(self, job_ids: Sequence[str]) -> None:
        if not job_ids:
            return
        asked = [("HGET", f"{self._prefix}job:{job_id}", "state") for job_id in job_ids]
        async with bounded(COMMAND_TIMEOUT):
            states = await self._looking.ask_all(asked)
        for job_id, state in zip(job_ids, states, strict=True):
            if state in _ENDED:
                self.ended(job_id)

    async def _read(self, pages: Sequence[tuple[str, bytes]]) -> list[Any]:
        asked = [
            ("XRANGE", f"{self._prefix}ev:{job_id}", after, "+", "COUNT", PAGE)
            for job_id, after in pages
        ]
        async with bounded(COMMAND_TIMEOUT):
            return await self._line.ask_again(asked)


def _tell(
    waiting: "asyncio.Future[Sequence[bytes] | Exception]", told: Sequence[bytes] | Exception
) -> None:
    if not waiting.done():
        waiting.set_result(told)
