"""Following jobs' events as they come: one reader per web process, which listens on its channel.

Workers show there what its streams gain, many in one message (`jobs/events.py`,
`subscription.py`). A single blocking XREAD reads the process's control stream. It reads a job's own
stream too until lines of it come: those of a job that another process or an earlier version
submitted never do. And it does so again after a gap between lines, or if the job's record is ahead
of what was shown.

A follower that joins reads the entries up to the reader's cursor itself (XRANGE); later ones reach
its queue. So it misses none; of what comes twice, it takes the first.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import NoReturn, cast

import redis.asyncio
from redis.exceptions import RedisError

from completions.jobs import connection
from completions.jobs.connection import (
    COMMAND_TIMEOUT,
    Bounded,
    DedicatedConnection,
    Entries,
    RawEntries,
)
from completions.jobs.events import LINES_FIELD, EndEvent, Event, decode_entry, decode_lines
from completions.jobs.reading.blocking_requests import BlockingRequests, ReaderLostError
from completions.jobs.reading.follower import BehindError, Follower, Take
from completions.jobs.reading.subscription import Subscription
from completions.jobs.record import ENDED, redis_name
from completions.jobs.store import JobStore

logger = logging.getLogger(__name__)

BLOCK = 5.0
"""Seconds that one XREAD waits."""
_XREAD = ("XREAD", "COUNT", 200, "BLOCK", int(BLOCK * 1000), "STREAMS")
_ALWAYS_READ = 2
"""Streams that are no job's: the control stream and the changes of keys."""
CONTROL_KEPT = 10_000
"""Entries of the control stream: more than can come between two reads."""
EXPECTED = 5.0
"""Seconds for which a stream without a follower is still read; by then its client has probably
gone."""


CHECK_INTERVAL = 2.0
"""Seconds between two looks whether Redis still has the jobs that are followed. One that is missing
twice is lost, as all are when Redis is emptied, and nothing would tell its followers."""
_LOOKED_AT = (redis_name("sequence_number"), "state")


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
        self._subscription = Subscription(
            self._blocking, self._control, self._hear_message, self._read_all_streams
        )
        self._keys_changed = self._keys.keys.encode()
        self._on_keys_changed = on_keys_changed
        self._cursors: dict[bytes, bytes] = {self._control: b"$", self._keys_changed: b"$"}
        self._followers: dict[str, tuple[Follower, ...]] = {}
        """By job."""
        self._check_connection = DedicatedConnection(self._client)
        self._absent: set[str] = set()
        """Followed jobs that Redis did not have at the last look."""
        self._behind: set[str] = set()
        """Those whose records were ahead of what was shown of them."""
        self._parts: list[tuple[Callable[[bytes], None], bytes]] = []
        """What `write_later` was given."""
        self._wake: asyncio.Task[None] | None = None
        """Ends the XREAD that blocks now, because it does not read all streams that it should."""

    async def run(self) -> None:
        """Read until cancelled. A lost connection fails the followers and is tried again."""
        await self._anchor_cursors()
        while True:
            # The other connection is renewed too: this shard may have another master now.
            listening = asyncio.create_task(self._subscription.run())
            try:
                await self._read_streams()
            except (RedisError, OSError) as error:
                logger.warning("reading events failed: %s", error)
                self._fail_followers(error)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            await asyncio.sleep(0.5)

    async def _read_streams(self) -> NoReturn:
        while True:
            cursors = dict(self._cursors)
            self._wake = None
            async with Bounded(BLOCK + 5):
                reply = await self._connection.ask([*_XREAD, *cursors, *cursors.values()])
            read = cast("list[tuple[bytes, RawEntries]]", reply or [])
            # Lines last: they may go on from what was stored.
            for stream, entries in sorted(read, key=lambda each: each[0] == self._control):
                # A stream that was left and joined again meanwhile waits for the next read.
                if self._cursors.get(stream) == cursors[stream]:
                    self._dispatch(stream, entries)
            self._write_parts()

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
        elif stream == self._control:
            for _, fields in entries:
                self._hear(fields)
        else:
            followers = self._followers.get(self._name_job(stream), ())
            for entry_id, (_, data) in entries if followers else ():
                try:
                    event = decode_entry(entry_id, data)
                    for follower in followers:
                        follower.offer_entry(entry_id, event)
                except Exception as error:  # of one job; the others are read on
                    logger.exception("%s has an entry that is no event", stream)
                    for follower in followers:
                        follower.fail(error)
                    return

    def _hear(self, fields: Sequence[bytes]) -> None:
        """Read an entry of the control stream."""
        if fields[0] != LINES_FIELD:
            _, ended, *events = fields  # an entry that only wakes has no id
            self.blocking_requests.note_end(ended.decode(), events[1::2])
        else:
            self._hear_lines(fields[1])

    def _hear_message(self, lines: bytes) -> None:
        """Hear what is shown on the channel."""
        if self._hear_lines(lines):
            self._wake_reader()
        self._write_parts()

    def write_later(self, write: Callable[[bytes], None], part: bytes) -> None:
        """Have `write` called with a part of a stream, once all followers were offered what was
        read. For a follower's `take` only.

        A write runs through the kernel, and leaves little of the interpreter in the processor's
        caches. So all writes of a step follow each other: an event takes 14 to 35 % less of the
        web tier's time (decision 48).
        """
        self._parts.append((write, part))

    def _write_parts(self) -> None:
        parts, self._parts = self._parts, []
        for write, part in parts:
            try:
                write(part)
            except Exception:  # its connection has ended meanwhile; the others are written to
                logger.exception("a part of a stream was not written")

    def _hear_lines(self, lines: bytes) -> bool:
        """Give lines to their followers. Returns whether the next XREAD has streams that it did not
        have."""
        has_more = False
        try:
            for job_id, event in decode_lines(lines):
                if followers := self._followers.get(job_id):
                    is_heard = True
                    for each in followers:
                        is_heard &= each.offer_line(event)
                    if not is_heard or len(self._cursors) > _ALWAYS_READ:
                        has_more |= self._read_stream(job_id, is_read=not is_heard)
        except Exception:  # what it had is a gap, which the jobs' own streams fill
            logger.exception("what was shown has no lines")
        return has_more

    def _read_stream(self, job_id: str, *, is_read: bool) -> bool:
        """Read a followed job's own stream from the next XREAD on, or no longer. Returns whether it
        was not read before."""
        stream = self._stream(job_id)
        is_new = is_read and stream not in self._cursors
        if is_new:
            self._cursors[stream] = b"0"
        elif not is_read:
            self._cursors.pop(stream, None)
        return is_new

    def _read_all_streams(self) -> None:
        """Read the streams of all followed jobs: messages may have been lost."""
        for job_id in self._followers:
            if self._read_stream(job_id, is_read=True):
                self._wake_reader()

    def _wake_reader(self) -> asyncio.Task[None]:
        """End the XREAD that blocks, once however many ask for it. The task raises if Redis does
        not answer; then the XREAD meets the same error."""
        if self._wake is None:
            self._wake = asyncio.create_task(self._end_read())
            self._wake.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._wake

    def _fail_followers(self, error: Exception) -> None:
        self.blocking_requests.fail(error)
        for followers in self._followers.values():
            for follower in followers:
                follower.fail(error)
        self._on_keys_changed()  # a revocation may have been missed

    async def watch(self) -> None:
        """Compare what was heard of the followed jobs with their records, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            with suppress(RedisError, OSError):  # `run` meets the same error and fails them all
                await self._look()

    async def _look(self) -> None:
        """Fail the followers of jobs that Redis has lost, and read the streams of those of which
        more is stored than was shown."""
        jobs = list(self._followers)
        if not jobs:
            return
        async with Bounded(COMMAND_TIMEOUT):
            records = await self._check_connection.ask_all(
                [("HMGET", self._keys.job(each), *_LOOKED_AT) for each in jobs]
            )
        absent, behind = set(), set()
        for job_id, record in zip(jobs, cast("list[list[bytes | None]]", records), strict=True):
            number, state = record
            if state is None:
                absent.add(job_id)
            elif self._stream(job_id) not in self._cursors and any(
                follower.next_number < int(number or 0) + (state.decode() in ENDED)
                for follower in self._followers.get(job_id, ())
            ):
                behind.add(job_id)
        for job_id in absent & self._absent:
            for follower in self._followers.get(job_id, ()):
                follower.fail(LookupError("Redis has lost the job"))
        for job_id in behind & self._behind:
            self._read_stream(job_id, is_read=job_id in self._followers)
        if behind & self._behind:
            await self._end_read()
        self._absent, self._behind = absent, behind

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
        if job_id not in self._followers:
            self._cursors.pop(self._stream(job_id), None)

    def _stream(self, job_id: str) -> bytes:
        return self._keys.ev(job_id).encode()

    def _name_job(self, stream: bytes) -> str:
        return stream[len(self._stream("")) :].decode()

    async def read(
        self,
        job_id: str,
        patience: float,
        stored: Sequence[Event] | None = None,
        *,
        is_blocking: bool = False,
        take: Take | None = None,
    ) -> AsyncGenerator[Event | None, None]:
        """Yield a job's events from one of three sources: SQL (`stored`), the end of a blocking
        request (`is_blocking`), or Redis as :meth:`follow`, which `take` is for. Raises
        ReaderLostError."""
        if is_blocking:
            stored = await self.blocking_requests.wait_for_result(job_id)
        if stored is not None:
            for event in stored:
                yield event
            return
        async with aclosing(self.follow(job_id, patience, take)) as events:
            async for each in events:
                yield each

    async def follow(
        self, job_id: str, patience: float = float("inf"), take: Take | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """Yield every event of a job from its first, as they come; None after every `patience`
        seconds without one. What `take` takes is not yielded. Raises ReaderLostError, also if Redis
        has lost the job."""
        stream = self._stream(job_id)
        seen, number = b"0", 1
        while True:
            follower = Follower(seen, number, take)
            try:
                cursor = await self._join(job_id, follower)
                for entry_id, fields in await self._catch_up(stream, seen, cursor):
                    entry = decode_entry(entry_id, fields[b"d"])
                    if (event := follower.catch_up(entry_id, entry)) is not None:
                        yield event
                    if isinstance(entry, EndEvent):
                        return
                while True:
                    yield (step := await follower.read(patience))
                    if isinstance(step, EndEvent):
                        return
            except BehindError:
                seen, number = follower.seen, follower.number
            finally:
                follower.close()
                self._leave(job_id, follower)

    async def _join(self, job_id: str, follower: Follower) -> bytes:
        """Send the follower the entries after the cursor of its job's stream, and return the
        cursor. A stream that was not read before starts at what the follower has seen."""
        stream = self._stream(job_id)
        self._followers[job_id] = (*self._followers.get(job_id, ()), follower)
        if stream not in self._cursors:
            self._cursors[stream] = follower.seen
            # The blocked XREAD does not read this stream yet; the next one does, and those that
            # join meanwhile, so one wake serves all.
            try:
                await asyncio.shield(self._wake_reader())
            except (RedisError, OSError) as error:
                self._wake = None
                raise ReaderLostError from error
            return follower.seen
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

    def _leave(self, job_id: str, follower: Follower) -> None:
        followers = tuple(each for each in self._followers.pop(job_id, ()) if each is not follower)
        if followers:
            self._followers[job_id] = followers
        else:
            self._cursors.pop(self._stream(job_id), None)

    async def close(self) -> None:
        with suppress(RedisError, OSError):
            await self._client.delete(self._control)
        await self._blocking.aclose()
        await self._client.aclose()
