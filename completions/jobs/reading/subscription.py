"""Listening on the channel of a web process, which has the name of its control stream.

A step's lines are a message there. Redis sends a message at once, keeps nothing of it and needs no
command for the next one. So it costs a third of an entry of a stream, and less where the lines of a
step go to many web processes. While nobody listens, lines come through the control stream. What
is lost with a connection is in the jobs' own streams, as all that is shown.
"""

import asyncio
import logging
from collections.abc import Callable

import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from completions.jobs.connection import take_connection

logger = logging.getLogger(__name__)

PING_INTERVAL = 5.0
"""Seconds between two questions whether Redis is there; it has as long to answer."""
_RETRY = 0.5


class Subscription:
    """Calls `hear` with each message, and `on_lost` when some may have been lost."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        channel: bytes,
        hear: Callable[[bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._pool = client.connection_pool
        self._channel = channel
        self._hear = hear
        self._on_lost = on_lost
        self._is_silent = False
        """Whether nothing has come since the last question."""

    async def run(self) -> None:
        """Listen until cancelled, or until Redis refuses: one before 7.0 has no such channels, and
        a user of Redis needs a right to them."""
        while True:
            try:
                await self._listen()
            except ResponseError as error:
                logger.warning("lines come through the control stream: %s", error)
                return
            except (RedisError, OSError) as error:
                logger.warning("listening to what is shown failed: %s", error)
                self._on_lost()
            await asyncio.sleep(_RETRY)

    async def _listen(self) -> None:
        connection = await take_connection(self._pool)
        asking = None
        try:
            await connection.send_command("SSUBSCRIBE", self._channel)
            asking = asyncio.create_task(self._ask(connection))
            while True:
                kind, _, *values = await connection.read_response()
                self._is_silent = False
                if kind == b"smessage":
                    self._hear(values[0])
                elif kind == b"sunsubscribe":
                    raise RedisConnectionError("the shard has moved")
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _ask(self, connection: redis.asyncio.Connection) -> None:
        """Disconnect where Redis does not answer, which ends the read."""
        self._is_silent = False
        while not self._is_silent:
            self._is_silent = True
            await connection.send_command("PING")
            await asyncio.sleep(PING_INTERVAL)
        await connection.disconnect(nowait=True)
