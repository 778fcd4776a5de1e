"""Following jobs' events as they come: one reader per web process, with a single blocking XREAD.

A connection and an XREAD per client would cost four times the CPU at 256 streams. A follower that
joins reads the entries up to the reader's cursor itself (XRANGE); later ones reach its queue. So it
misses none and sees none twice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import cast

import redis.asyncio
from redis.exceptions import RedisError

from completions.jobs import connection
from completions.jobs.blocking_requests import BlockingRequests, ReaderLostError
from completions.jobs.connection import (
    COMMAND_TIMEOUT,
    Bounded,
    DedicatedConnection,
    Entries,
    RawEntries,
)
from completions.jobs.events import EndEvent, Event, decode_entry
from completions.jobs.store import JobStore

logger = logging.getLogger(__name__)

BLOCK = 5.0
"""Seconds that one XREAD waits."""
BACKLOG = 1024
"""Entries that a slow follower may fall behind before it must read them itself."""
_XREAD = ("XREAD", "COUNT", 200, "BLOCK", int(BLOCK * 1000), "STREAMS")
CONTROL_KEPT = 10_000
"""Entries of the control stream: more than can come between two reads."""
EXPECTED = 5.0
"""Seconds for which a stream without a follower is still read; by then its client has probably
gone."""


CHECK_INTERVAL = 2.0
"""Seconds between two looks whether Redis still has the jobs that are followed. One that is missing
twice is lost, as all are when Redis is emptied, and nothing would tell its followers."""


class _Follower:
    """One client's place in one job's events."""

    __slots__ = ("_heard_at", "_timer", "entries", "failure", "overflowed", "silent", "wake")

    def __init__(self) -> None:
        self.entries: deque[tuple[bytes, bytes]] = deque()
        self.wake = asyncio.Event()
        self.overflowed = False
        self.failure: Exception | None = None
        self.silent = False
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0

    def offer(self, entry_id: bytes, data: bytes) -> None:
        if len(self.entries) >= BACKLOG:
            self.overflowed = True
        if not self.overflowed:
            self.entries.append((entry_id, data))
        self.wake.set()

    def listen(self, patience: float) -> None:
        """Wake `patience` seconds after the last call. This is called for every entry, so it does
        not move the timer; the timer checks whether it fired too early."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(patience, self._look, patience)

    def _look(self, patience: float) -> None:
        loop = asyncio.get_running_loop()
        due, self._timer = self._heard_at + patience, None
        if loop.time() < due:
            self._timer = loop.call_at(due, self._look, patience)
        else:
            self.silent = True
            self.wake.set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class EventReader:
    """Bound to one event loop. Calls `on_keys_changed` when API keys may have changed."""

    def __init__(
        self, url: str, prefix: str, web_id: str, on_keys_changed: Callable[[], None]
    ) -> None:
        self._blocking = connection.connect_blocking_reader(url)
        self._connection = DedicatedConnection(self._blocking)
        self._client: redis.asyncio.Redis = connection.connect_async(url)
        store = JobStore(self._client, prefix)
        self.blocking_requests = BlockingRequests(store)
        self._keys = store.keys
        self._control = self._keys.ctl(web_id).encode()
        self._keys_changed = self._keys.keys.encode()
        self._on_keys_changed = on_keys_changed
        self._cursors: dict[bytes, bytes] = {self._control: b"$", self._keys_changed: b"$"}
        self._followers: dict[bytes, set[_Follower]] = {}
        self._check_connection = DedicatedConnection(self._client)
        self._absent: set[bytes] = set()
        """Followed streams whose jobs Redis did not have at the last look."""
        self._wake: asyncio.Task[None] | None = None
        """Ends the XREAD that blocks now, because a follower has joined."""

    async def run(self) -> None:
        """Read until cancelled. A lost connection fails the followers and is tried again."""
        await self._anchor_cursors()
        while True:
            cursors = dict(self._cursors)
            self._wake = None
            try:
                async with Bounded(BLOCK + 5):
                    reply = await self._connection.ask([*_XREAD, *cursors, *cursors.values()])
            except (RedisError, OSError) as error:
                logger.warning("reading events failed: %s", error)
                self._fail_followers(error)
                await asyncio.sleep(0.5)
                continue
            for stream, entries in cast("list[tuple[bytes, RawEntries]]", reply or []):
                # A stream that was left and joined again meanwhile waits for the next read.
                if self._cursors.get(stream) == cursors[stream]:
                    self._dispatch(stream, entries)

    async def _anchor_cursors(self) -> None:
        """Turn `$` into an id, so that entries between two reads are not missed."""
        while True:
            try:
                for stream in (self._control, self._keys_changed):
                    last = cast("Entries", await self._client.xrevrange(stream, count=1))
                    self._cursors[stream] = last[0][0] if last else b"0"
            except (RedisError, OSError):
                await asyncio.sleep(0.5)
            else:
                return

    def _dispatch(self, stream: bytes, entries: RawEntries) -> None:
        self._cursors[stream] = entries[-1][0]
        if stream == self._keys_changed:
            self._on_keys_changed()
        if stream == self._control:
            for _, (_, job_id, *events) in entries:  # an entry that only wakes has no id
                self.blocking_requests.note_end(job_id.decode(), events[1::2])
        for follower in tuple(self._followers.get(stream, ())):
            for entry_id, (_, data) in entries:
                follower.offer(entry_id, data)

    def _fail_followers(self, error: Exception) -> None:
        self.blocking_requests.fail(error)
        for followers in self._followers.values():
            for follower in followers:
                follower.failure = error
                follower.wake.set()
        self._on_keys_changed()  # a revocation may have been missed

    async def watch(self) -> None:
        """Fail the followers of jobs that Redis has lost, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            with suppress(RedisError, OSError):  # `run` meets the same error and fails them all
                await self._look()

    async def _look(self) -> None:
        streams = list(self._followers)
        if not streams:
            return
        ids = [stream[len(self._stream("")) :].decode() for stream in streams]
        async with Bounded(COMMAND_TIMEOUT):
            counts = await self._check_connection.ask_all(
                [("EXISTS", self._keys.job(each)) for each in ids]
            )
        absent = {stream for stream, count in zip(streams, counts, strict=True) if count == 0}
        for stream in absent & self._absent:
            for follower in self._followers.get(stream, ()):
                follower.failure = LookupError("Redis has lost the job")
                follower.wake.set()
        self._absent = absent

    @property
    def streams(self) -> frozenset[bytes]:
        """The Redis streams that the next XREAD reads."""
        return frozenset(self._cursors)

    def expect(self, job_id: str) -> None:
        """Read the events of a job that does not exist yet. The script that makes it wakes the
        XREAD through an entry in this process's control stream, so its follower need not."""
        self._cursors.setdefault(self._stream(job_id), b"0")
        asyncio.get_running_loop().call_later(EXPECTED, self.forget, job_id)

    def forget(self, job_id: str) -> None:
        """Stop reading a job's events, unless it has a follower."""
        stream = self._stream(job_id)
        if stream not in self._followers:
            self._cursors.pop(stream, None)

    def _stream(self, job_id: str) -> bytes:
        return self._keys.ev(job_id).encode()

    async def read(
        self,
        job_id: str,
        patience: float,
        stored: Sequence[Event] | None = None,
        *,
        is_blocking: bool = False,
    ) -> AsyncGenerator[Event | None, None]:
        """Yield a job's events from one of three sources: SQL (`stored`), the end of a blocking
        request (`is_blocking`), or Redis as :meth:`follow`. Raises ReaderLostError."""
        if is_blocking:
            stored = await self.blocking_requests.wait_for_result(job_id)
        if stored is not None:
            for event in stored:
                yield event
            return
        async with aclosing(self.follow(job_id, patience)) as events:
            async for each in events:
                yield each

    async def follow(
        self, job_id: str, patience: float = float("inf")
    ) -> AsyncGenerator[Event | None, None]:
        """Yield every event of a job from its first, as they come; None after every `patience`
        seconds without one. Raises ReaderLostError, also if Redis has lost the job."""
        stream = self._stream(job_id)
        seen = b"0"
        while True:
            follower = _Follower()
            try:
                cursor = await self._join(stream, follower, seen)
                for entry_id, fields in await self._catch_up(stream, seen, cursor):
                    seen = entry_id
                    yield (event := decode_entry(entry_id, fields[b"d"]))
                    if isinstance(event, EndEvent):
                        return
                async for entry in self._live(follower, patience):
                    if entry is None:
                        yield None
                        continue
                    seen, data = entry
                    yield (event := decode_entry(seen, data))
                    if isinstance(event, EndEvent):
                        return
            finally:
                follower.close()
                self._leave(stream, follower)

    async def _join(self, stream: bytes, follower: _Follower, seen: bytes) -> bytes:
        """Send the follower the entries after the stream's cursor, and return the cursor. A stream
        that was not read before starts at `seen`."""
        self._followers.setdefault(stream, set()).add(follower)
        if stream not in self._cursors:
            self._cursors[stream] = seen
            # The blocked XREAD does not read this stream yet; the next one does, and those that
            # join meanwhile, so one wake serves all.
            if self._wake is None:
                self._wake = asyncio.create_task(self._end_read())
            try:
                await asyncio.shield(self._wake)
            except (RedisError, OSError) as error:
                self._wake = None
                raise ReaderLostError from error
            return seen
        return self._cursors[stream]

    async def _end_read(self) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xadd(self._control, {b"d": b""}, maxlen=CONTROL_KEPT)
        pipeline.expire(self._control, 60)
        async with Bounded(COMMAND_TIMEOUT):
            await pipeline.execute()

    async def _catch_up(self, stream: bytes, seen: bytes, cursor: bytes) -> Entries:
        """Read the entries after `seen`, up to and including `cursor`."""
        if seen == cursor:
            return []
        try:
            entries = await self._client.xrange(stream, min=b"(" + seen, max=cursor)
        except (RedisError, OSError) as error:
            raise ReaderLostError from error
        return cast("Entries", entries)

    async def _live(
        self, follower: _Follower, patience: float
    ) -> AsyncIterator[tuple[bytes, bytes] | None]:
        """Yield queued entries until the follower falls too far behind; None for a silence."""
        while True:
            while follower.entries:
                yield follower.entries.popleft()
            if follower.overflowed:
                return
            if follower.failure is not None:
                raise ReaderLostError from follower.failure
            if follower.silent:
                follower.silent = False
                yield None
                continue
            follower.wake.clear()
            if patience < float("inf"):
                follower.listen(patience)
            await follower.wake.wait()

    def _leave(self, stream: bytes, follower: _Follower) -> None:
        followers = self._followers.get(stream)
        if followers is None:
            return
        followers.discard(follower)
        if not followers:
            del self._followers[stream]
            self._cursors.pop(stream, None)

    async def close(self) -> None:
        with suppress(RedisError, OSError):
            await self._client.delete(self._control)
        await self._blocking.aclose()
        await self._client.aclose()
