"""Waiting for the whole result of a call's job.

Following a call step by step, like a stream, would repeat the web process's XREAD for each of its
steps. Instead, the script that ends the job (`lua/shared/ending.lua`) writes to the control stream
of the web process. The entry has all events of the job if they are few; otherwise the web process
then reads them.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from completions.jobs.connection import COMMAND_TIMEOUT, Bounded, Line, RawEntries
from completions.jobs.events import EndEvent, Event, decode
from completions.jobs.gathering import Gathering
from completions.jobs.record import ENDED
from completions.jobs.store import AsyncStore

LOOK = 1.0
"""Seconds between two looks at the states of the jobs: a process of another version may end a job
without an entry in the control stream."""
PAGE = 64
"""Entries read at a time, so that a long result does not delay other clients' streams."""
_ENDED = frozenset(state.encode() for state in ENDED)

Outcome = Sequence[bytes] | Exception
"""All events of an ended job, none if they must be read from Redis, or the error of the reader."""


class ReaderLostError(Exception):
    """Redis cannot be read; the client should get an error at once."""


class Calls:
    """The calls that wait in one event loop."""

    def __init__(self, store: AsyncStore) -> None:
        self._line = Line(store.client)
        self._looking = Line(store.client)
        self._keys = store.keys
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}
        self._awaited: set[str] = set()
        """Jobs that have been submitted."""
        self._absent: set[str] = set()
        """Those of them that Redis did not know at the last look."""
        self._pages: Gathering[tuple[str, bytes], RawEntries] = Gathering(self._read)

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, job_id: str) -> None:
        self._waiting[job_id] = asyncio.get_running_loop().create_future()

    def forget(self, job_id: str) -> None:
        self._waiting.pop(job_id, None)
        self._awaited.discard(job_id)

    def ended(self, job_id: str, entries: Sequence[bytes] = ()) -> None:
        """Note that a job has ended, with all of its events, or none if they must be read."""
        if job_id in self._waiting:
            _resolve(self._waiting[job_id], entries)

    def fail(self, error: Exception) -> None:
        """Note that the ends of some jobs may have been missed."""
        for waiting in self._waiting.values():
            _resolve(waiting, error)

    async def result(self, job_id: str) -> list[Event]:
        """All events of an announced and submitted job, once it has ended. Raises ReaderLostError,
        also if Redis has lost the job."""
        self._awaited.add(job_id)
        try:
            outcome = await self._waiting[job_id]
        finally:
            self.forget(job_id)
        if isinstance(outcome, Exception):
            raise ReaderLostError from outcome
        events = [decode(data) for data in outcome] if outcome else await self._read_all(job_id)
        if not events or not isinstance(events[-1], EndEvent):
            raise ReaderLostError  # Redis was restored without the end
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
        """Look at the states of the jobs that calls wait for, until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._look([job_id for job_id, it in self._waiting.items() if not it.done()])
            except (RedisError, OSError):
                continue  # the reader meets the same error and fails the calls

    async def _look(self, job_ids: Sequence[str]) -> None:
        if not job_ids:
            return
        commands = [("HGET", self._keys.job(job_id), "state") for job_id in job_ids]
        async with Bounded(COMMAND_TIMEOUT):
            states = await self._looking.ask_all(commands)
        for job_id, state in zip(job_ids, states, strict=True):
            if state in _ENDED:
                self.ended(job_id)
        known = {job_id for job_id, state in zip(job_ids, states, strict=True) if state}
        absent = self._awaited.intersection(job_ids) - known
        for job_id in absent & self._absent:
            _resolve(self._waiting[job_id], LookupError(f"Redis has lost {job_id}"))
        self._absent = absent

    async def _read(self, pages: Sequence[tuple[str, bytes]]) -> list[Any]:
        commands = [
            ("XRANGE", self._keys.ev(job_id), after, "+", "COUNT", PAGE) for job_id, after in pages
        ]
        async with Bounded(COMMAND_TIMEOUT):
            return await self._line.ask_again(commands)


def _resolve(waiting: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not waiting.done():
        waiting.set_result(outcome)
