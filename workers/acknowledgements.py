"""The broker's record of the messages that a worker has: kombu's, in fewer round trips.

kombu records each message, and removes it once it is acknowledged, each by a transaction of its
own. Here, a timer does both for all messages of DELAY, and those that came and were acknowledged
since are never recorded. A worker that dies before that loses messages of jobs that wait, which the
reconciler publishes again, and leaves messages of jobs that have ended; the worker that gets one
acknowledges it.
"""

import logging
from time import time
from typing import Any

from celery import bootsteps
from kombu.asynchronous import get_event_loop, set_event_loop
from kombu.transport import virtual
from kombu.transport.redis import Channel, QoS
from kombu.utils.json import dumps
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

DELAY = 0.25
"""Seconds after which the record is brought up to date."""
_MOST = 100
"""Messages that wait for it at most."""


class JoinedQoS(QoS):
    """Records messages, and removes acknowledged ones, in groups. Celery's main thread uses it, and
    the thread that closes the channel."""

    channel: Any

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self._new: dict[str, Any] = {}
        """Messages that are to be recorded, by delivery tag."""
        self._acknowledged: list[str] = []
        """Messages that are to be removed."""
        self._client: Any = None
        self._timer: Any = None
        self._is_away = False
        """Whether the broker refused the last update."""

    def append(self, message: Any, delivery_tag: str) -> None:
        virtual.QoS.append(self, message, delivery_tag)
        self._new[delivery_tag] = message
        self._update_later()

    def ack(self, delivery_tag: str) -> None:
        virtual.QoS.ack(self, delivery_tag)
        if self._new.pop(delivery_tag, None) is None:
            self._acknowledged.append(delivery_tag)
            self._update_later()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._write()  # it goes back from the record
        super().reject(delivery_tag, requeue)

    def restore_unacked(self, client: Any = None) -> None:
        self.update()
        super().restore_unacked(client)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back what is not acknowledged, as the channel closes."""
        self.update()
        super().restore_unacked_once(stderr)

    def update(self) -> None:
        """Bring the record up to date now, or try again later."""
        self._timer = None
        try:
            self._write()
        except (RedisError, OSError) as error:
            logger.warning("the record of messages is not up to date: %s", error)
            self._is_away = True
            if (loop := get_event_loop()) is not None:
                self._timer = loop.call_later(DELAY, self.update)

    def _update_later(self) -> None:
        loop = get_event_loop()
        num_waiting = len(self._new) + len(self._acknowledged)
        if loop is None or (num_waiting >= _MOST and not self._is_away):
            self.update()
        elif self._timer is None:
            self._timer = loop.call_later(DELAY, self.update)

    def _write(self) -> None:
        """Bring the record up to date. Removals come first, by themselves: at maxmemory, Redis
        refuses what records."""
        if self._client is None:  # kombu makes one each time, which costs more than its use
            self._client = self.channel.Client(connection_pool=self.channel.pool)
        if removed := list(self._acknowledged):
            with self._client.pipeline() as pipe:
                pipe.zrem(self.unacked_index_key, *removed)
                pipe.hdel(self.unacked_key, *removed)
                pipe.execute()
            del self._acknowledged[: len(removed)]
        if new := dict(self._new):
            with self._client.pipeline() as pipe:
                pipe.zadd(self.unacked_index_key, dict.fromkeys(new, time()))
                pipe.hset(self.unacked_key, mapping={tag: _pack(it) for tag, it in new.items()})
                pipe.execute()
            self._new = {tag: it for tag, it in self._new.items() if tag not in new}
        self._is_away = False


def _pack(message: Any) -> str:
    """Return a message as kombu records it."""
    delivery = message.delivery_info
    packed: str = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
    return packed


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
