"""The broker's record of the messages that a worker has: kombu's, in fewer round trips.

kombu removes each acknowledged message from the record by a separate transaction. Here, the
transaction of the next message removes it, or a timer does after DELAY. A worker that dies before
that leaves messages of jobs that have ended; the worker that gets one acknowledges it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import bootsteps
from kombu.asynchronous import get_event_loop, set_event_loop
from kombu.transport import virtual
from kombu.transport.redis import Channel, QoS
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

DELAY = 0.25
"""Seconds after which acknowledged messages are removed although no other has come."""
_MOST = 100
"""Acknowledged messages that are removed without waiting."""


class JoinedQoS(QoS):
    """Removes acknowledged messages in groups. Celery's main thread uses it, and the thread that
    closes the channel."""

    channel: Any

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self._acknowledged: list[str] = []
        """Messages that are to be removed."""
        self._client: Any = None
        self._timer: Any = None

    @contextmanager
    def pipe_or_acquire(self, pipe: Any = None, client: Any = None) -> Iterator[Any]:
        """Yield a pipeline, which also removes what was acknowledged if it is a new one."""
        if pipe is not None:
            yield pipe
            return
        if self._client is None:  # kombu makes one each time, which costs more than its use
            self._client = self.channel.Client(connection_pool=self.channel.pool)
        own = (client or self._client).pipeline()
        if tags := self._take():
            own.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags)
        try:
            yield own
        except BaseException:  # at maxmemory, Redis refuses a message, and what comes with it
            self._acknowledged += tags
            raise

    def ack(self, delivery_tag: str) -> None:
        virtual.QoS.ack(self, delivery_tag)
        self._acknowledged.append(delivery_tag)
        loop = get_event_loop()
        if loop is None or len(self._acknowledged) >= _MOST:
            self.remove_acknowledged()
        elif self._timer is None:
            self._timer = loop.call_later(DELAY, self.remove_acknowledged)

    def remove_acknowledged(self) -> None:
        """Remove what was acknowledged now."""
        self._timer = None
        if not self._acknowledged:
            return
        try:
            with self.pipe_or_acquire() as pipe:
                pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("messages of ended jobs are not removed yet: %s", error)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back what is not acknowledged, as the channel closes."""
        self.remove_acknowledged()
        super().restore_unacked_once(stderr)

    def _take(self) -> list[str]:
        taken, self._acknowledged = self._acknowledged, []
        return taken


def join_acknowledgements() -> None:
    """Have the channels of this process join what they tell the broker."""
    Channel.QoS = JoinedQoS


class NameEventLoop(bootsteps.StartStopStep):
    """Names the consumer's event loop to kombu again, which forgets it when Celery reconnects."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        set_event_loop(consumer.hub)

    def stop(self, consumer: object) -> None:
        """Do nothing: the loop outlives the consumer."""
