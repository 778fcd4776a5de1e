"""Redis clients with explicit timeouts; redis-py's defaults break blocking reads and bursts."""

import asyncio
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

Entries = list[tuple[bytes, dict[bytes, bytes]]]
"""Of one stream, as RESP2 without decoding gives them: ids and fields."""

# RESP2 keeps every reply a plain list or bytes; RESP3 answers XREAD with a mapping.
_PROTOCOL = 2
_CONNECT_TIMEOUT = 5.0
_COMMAND_TIMEOUT = 5.0


def connect(url: str, timeout: float = _COMMAND_TIMEOUT) -> redis.Redis:
    """A client for threads: workers, periodic tasks, commands. Never retries by itself."""
    return redis.Redis.from_url(
        url,
        protocol=_PROTOCOL,
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, _CONNECT_TIMEOUT),
        retry=Retry(NoBackoff(), 0),
    )


class _BoundedPipeline(redis.asyncio.client.Pipeline):
    """Of the client below, and bounded like it."""

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        async with asyncio.timeout(_COMMAND_TIMEOUT):
            return await super().execute(raise_on_error)


class _BoundedRedis(redis.asyncio.Redis):
    """Bounds commands itself: redis-py's `socket_timeout` goes through `asyncio.wait_for`, which on
    Python 3.11 now and then swallows a cancellation (python/cpython#86296), and with it a hang-up.
    """

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(_COMMAND_TIMEOUT):
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
