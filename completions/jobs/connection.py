"""Redis clients with explicit timeouts; redis-py's defaults break blocking reads and bursts."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
from hiredis import pack_command
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

Entries = list[tuple[bytes, dict[bytes, bytes]]]
"""Of one stream, as RESP2 without decoding gives them: ids and fields."""
RawEntries = list[tuple[bytes, Sequence[bytes]]]
"""The same on a line, as Redis sends them: an id, and fields and values in turn."""

# RESP2 keeps every reply a plain list or bytes; RESP3 answers XREAD with a mapping.
_PROTOCOL = 2
_CONNECT_TIMEOUT = 5.0
COMMAND_TIMEOUT = 5.0
"""Seconds that Redis may take over one command."""
_TURNS = 50


def connect(url: str, timeout: float = COMMAND_TIMEOUT) -> redis.Redis:
    """A client for threads: workers, periodic tasks, commands. Never retries by itself."""
    return redis.Redis.from_url(
        url,
        protocol=_PROTOCOL,
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, _CONNECT_TIMEOUT),
        retry=Retry(NoBackoff(), 0),
    )


class _Bounded:
    """A generator would do, at twice the cost of what it bounds."""

    __slots__ = ("_limit", "_timer", "_turn_seconds", "_turns_left")

    def __init__(self, seconds: float) -> None:
        self._limit = asyncio.timeout(None)
        self._turn_seconds = seconds / _TURNS
        self._turns_left = _TURNS

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._turn()

    async def __aexit__(self, *failure: Any) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(*failure)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._turns_left:
            self._turns_left -= 1
            self._timer = loop.call_later(self._turn_seconds, self._turn)
        else:
            self._limit.reschedule(loop.time())


def bounded(seconds: float) -> _Bounded:
    """asyncio.timeout for an answer that may be here already: where the event loop is behind with
    its work, what it waits for lies unread, so at least some turns of it must pass, too."""
    return _Bounded(seconds)


class _BoundedPipeline(redis.asyncio.client.Pipeline):
    """Of the client below, and bounded like it."""

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        async with bounded(COMMAND_TIMEOUT):
            return await super().execute(raise_on_error)


class _BoundedRedis(redis.asyncio.Redis):
    """Bounds commands itself: redis-py's `socket_timeout` goes through `asyncio.wait_for`, which on
    Python 3.11 now and then swallows a cancellation (python/cpython#86296), and with it a hang-up.
    """

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with bounded(COMMAND_TIMEOUT):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> _BoundedPipeline:
        return _BoundedPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )


def connect_async(url: str) -> redis.asyncio.Redis:
    """A client for one event loop whose callers queue for a connection instead of failing."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        protocol=_PROTOCOL,
        max_connections=32,
        timeout=5,
        socket_timeout=None,
        socket_connect_timeout=_CONNECT_TIMEOUT,
        retry=AsyncRetry(NoBackoff(), 0),
    )
    return _BoundedRedis.from_pool(pool)  # closes the pool with itself


def connect_blocking_reader(url: str) -> redis.asyncio.Redis:
    """A client for reads that block long; who calls bounds them."""
    return redis.asyncio.Redis.from_url(
        url,
        protocol=_PROTOCOL,
        socket_timeout=None,
        socket_connect_timeout=_CONNECT_TIMEOUT,
        retry=AsyncRetry(NoBackoff(), 0),
    )


class Line:
    """One connection of a client's for one conversation at a time; it closes with the client.

    What redis-py does around each command, for its pool, its policy of retries and whoever
    observes it, costs a quarter of a millisecond of CPU, and writing an XREAD of 16 streams in
    Python as much again.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None

    async def ask(self, command: Sequence[Any]) -> Any:
        """The reply to one command, as it comes. Raises RedisError or OSError."""
        (reply,) = await self.ask_all([command])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def ask_again(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The same as `ask_all` for what may be done twice: on a new connection if the old one
        turns out to be closed."""
        if self._connection is not None:
            with suppress(RedisConnectionError):
                return await self.ask_all(commands)
        return await self.ask_all(commands)

    async def ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Replies in order, an error among them where a command was refused."""
        connection, self._connection = self._connection, None
        if connection is None:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            packed = b"".join([pack_command(tuple(command)) for command in commands])
            await connection.send_packed_command(packed, check_health=False)
            replies = [await _reply(connection) for _ in commands]
        except BaseException:  # whatever else arrives on it would be taken for a later reply
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            raise
        self._connection = connection
        return replies


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
