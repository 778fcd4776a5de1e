"""Redis clients with explicit timeouts. redis-py's defaults break blocking reads and bursts."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import redis
import redis.asyncio
from hiredis import pack_command
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from completions.jobs import cluster

Entries = list[tuple[bytes, dict[bytes, bytes]]]
"""Entries of a Redis stream as redis-py returns them: ids and fields."""
RawEntries = list[tuple[bytes, Sequence[bytes]]]
"""The same as a `DedicatedConnection` returns them: ids, and fields and values in turn."""

_CONNECT_TIMEOUT = 5.0
COMMAND_TIMEOUT = 5.0
"""Seconds that Redis may take for one command."""
_TURNS = 50
"""Iterations of the event loop that must pass before a timeout."""
_ASYNC: Mapping[str, Any] = {
    "protocol": 2,  # every reply is a list or bytes; RESP3 answers XREAD with a mapping
    "socket_timeout": None,  # `_BoundedRedis` says why
    "socket_connect_timeout": _CONNECT_TIMEOUT,
    "retry": AsyncRetry(NoBackoff(), 0),
}


def connect(url: str, timeout: float = COMMAND_TIMEOUT) -> redis.Redis:
    """Make a client for threads: workers, periodic tasks, commands. It never retries."""
    server, slot = cluster.parse(url)
    client = redis.Redis.from_url(
        server,
        protocol=_ASYNC["protocol"],
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, _CONNECT_TIMEOUT),
        retry=Retry(NoBackoff(), 0),
    )
    cluster.follow(client.connection_pool, slot)
    return client


class Bounded:
    """`asyncio.timeout` that also waits for some iterations of the event loop: when the loop is
    late, a reply may have arrived without having been read. As a generator it would cost twice as
    much as what it bounds."""

    __slots__ = ("_limit", "_timer", "_turn_seconds", "_turns_left")

    def __init__(self, seconds: float) -> None:
        self._limit = asyncio.timeout(None)
        self._turn_seconds = seconds / _TURNS
        self._turns_left = _TURNS

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._turn()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._turns_left:
            self._turns_left -= 1
            self._timer = loop.call_later(self._turn_seconds, self._turn)
        else:
            self._limit.reschedule(loop.time())


class _BoundedPipeline(redis.asyncio.client.Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[object]:
        async with Bounded(COMMAND_TIMEOUT):
            return await super().execute(raise_on_error)


class _BoundedRedis(redis.asyncio.Redis):
    """Bounds commands itself: redis-py's `socket_timeout` uses `asyncio.wait_for`, which in Python
    3.11 can swallow a cancellation (python/cpython#86296), so that a client's hang-up is missed."""

    async def execute_command(self, *args: object, **options: object) -> object:
        async with Bounded(COMMAND_TIMEOUT):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> _BoundedPipeline:
        return _BoundedPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )


def connect_async(url: str) -> redis.asyncio.Redis:
    """Make a client for one event loop. Callers queue for a connection instead of failing."""
    server, slot = cluster.parse(url)
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        server, max_connections=32, timeout=5, **_ASYNC
    )
    cluster.follow(pool, slot)
    return _BoundedRedis.from_pool(pool)  # closes the pool with itself


def connect_blocking_reader(url: str) -> redis.asyncio.Redis:
    """Make a client for reads that block long; the caller bounds them."""
    server, slot = cluster.parse(url)
    client = redis.asyncio.Redis.from_url(server, **_ASYNC)
    cluster.follow(client.connection_pool, slot)
    return client


async def take_connection(pool: redis.asyncio.ConnectionPool) -> redis.asyncio.Connection:
    """Take a connection out of a pool; the caller releases it. Raises RedisError or OSError."""
    connection: redis.asyncio.Connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    return connection


class DedicatedConnection:
    """One connection of a client, for one caller at a time; it closes with the client.

    redis-py's pool, retries and hooks cost a quarter of a millisecond of CPU per command, and
    packing an XREAD of 16 streams in Python costs as much again.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._pool = client.connection_pool
        self._connection: redis.asyncio.Connection | None = None

    async def ask(self, command: Sequence[object]) -> object:
        """Send one command and return its reply, undecoded. Raises RedisError or OSError."""
        (reply,) = await self.ask_all([command])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def ask_again(self, commands: Sequence[Sequence[object]]) -> list[object]:
        """Send commands that may run twice, as `ask_all`: try a new connection if the old one is
        closed."""
        if self._connection is not None:
            with suppress(RedisConnectionError):
                return await self.ask_all(commands)
        return await self.ask_all(commands)

    async def ask_all(self, commands: Sequence[Sequence[Any]]) -> list[object]:
        """Send commands and return their replies in order; the reply to a command that Redis
        refused is its error."""
        connection, self._connection = self._connection, None
        if connection is None:
            connection = await take_connection(self._pool)
        try:
            packed = b"".join([pack_command(tuple(command)) for command in commands])
            await connection.send_packed_command(packed, check_health=False)
            replies = [await _reply(connection) for _ in commands]
        except BaseException:  # a late reply would be read as the next command's
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            raise
        self._connection = connection
        return replies


async def _reply(connection: redis.asyncio.Connection) -> object:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
