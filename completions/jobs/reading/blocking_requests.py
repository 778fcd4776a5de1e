"""Waiting for the whole result of a blocking request's job.

Following it step by step, like a stream, would repeat the web process's XREAD for each of its
steps. Instead, the script that ends the job (`lua/shared/ending.lua`) writes to the control stream
of the web process. The entry has all events of the job if they are few; otherwise the web process
then reads them.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from completions.jobs.connection import COMMAND_TIMEOUT, Bounded, DedicatedConnection, RawEntries
from completions.jobs.events import EndEvent, Event, decode
from completions.jobs.micro_batcher import MicroBatcher
from completions.jobs.record import ENDED
from completions.jobs.store import AsyncStore

POLL_INTERVAL = 1.0
"""Seconds between two polls of job states. Needed during upgrades: an older process ends jobs
without announcing it on the control stream."""
PAGE_SIZE = 64
"""Entries read at a time, so that a long result does not delay other clients' streams."""
_ENDED = frozenset(state.encode() for state in ENDED)

RawResult = Sequence[bytes] | Exception
"""All events of an ended job, none if they must be read from Redis, or the error of the reader."""


class ReaderLostError(Exception):
    """Redis cannot be read; the client should get an error at once."""


class BlockingRequests:
    """The blocking requests that wait in one event loop."""

    def __init__(self, store: AsyncStore) -> None:
        self._connection = DedicatedConnection(store.client)
        self._state_connection = DedicatedConnection(store.client)
        self._keys = store.keys
        self._waiting: dict[str, asyncio.Future[RawResult]] = {}
        self._awaited: set[str] = set()
        """Jobs that have been submitted."""
        self._absent: set[str] = set()
        """Those of them that Redis did not know at the last poll."""
        self._pages: MicroBatcher[tuple[str, bytes], RawEntries] = MicroBatcher(self._read)

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, job_id: str) -> None:
        self._waiting[job_id] = asyncio.get_running_loop().create_future()

    def forget(self, job_id: str) -> None:
        self._waiting.pop(job_id, None)
        self._awaited.discard(job_id)

    def note_end(self, job_id: str, entries: Sequence[bytes] = ()) -> None:
        """Note that a job has ended, with all of its events, or none if they must be read."""
        if job_id in self._waiting:
            _resolve(self._waiting[job_id], entries)

    def fail(self, error: Exception) -> None:
        """Note that the ends of some jobs may have been missed."""
        for waiting in self._waiting.values():
            _resolve(waiting, error)

    async def wait_for_result(self, job_id: str) -> list[Event]:
        """Wait for an announced and submitted job to end, and return all its events. Raises
        ReaderLostError, also if Redis has lost the job."""
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
            if len(entries) < PAGE_SIZE:
                return events
            after = b"(" + entries[-1][0]

    async def watch(self) -> None:
        """Poll the states of the jobs that requests wait for, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            try:
                await self._look([job_id for job_id, it in self._waiting.items() if not it.done()])
            except (RedisError, OSError):
                continue  # the reader meets the same error and fails the requests

    async def _look(self, job_ids: Sequence[str]) -> None:
        if not job_ids:
            return
        commands = [("HGET", self._keys.job(job_id), "state") for job_id in job_ids]
        async with Bounded(COMMAND_TIMEOUT):
            states = await self._state_connection.ask_all(commands)
        for job_id, state in zip(job_ids, states, strict=True):
            if state in _ENDED:
                self.note_end(job_id)
        present = {job_id for job_id, state in zip(job_ids, states, strict=True) if state}
        absent = self._awaited.intersection(job_ids) - present
        for job_id in absent & self._absent:
            _resolve(self._waiting[job_id], LookupError(f"Redis has lost {job_id}"))
        self._absent = absent

    async def _read(self, pages: Sequence[tuple[str, bytes]]) -> list[Any]:
        commands = [
            ("XRANGE", self._keys.ev(job_id), after, "+", "COUNT", PAGE_SIZE)
            for job_id, after in pages
        ]
        async with Bounded(COMMAND_TIMEOUT):
            return await self._connection.ask_again(commands)


def _resolve(waiting: "asyncio.Future[RawResult]", outcome: RawResult) -> None:
    if not waiting.done():
        waiting.set_result(outcome)
