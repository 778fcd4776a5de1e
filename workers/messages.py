"""A worker's Celery messages: unreadable ones are dropped, and the record of the others is kept in
fewer round trips than kombu's.

Celery would end the worker that gets a message which it cannot read, and then the next one.

kombu records each message, and removes it once it is acknowledged, each by a transaction of its
own. Here, a timer does both for all messages of DELAY, and those that came and were acknowledged
since are never recorded. A worker that dies before that loses messages of jobs that wait, which the
reconciler publishes again, and leaves messages of jobs that have ended; the worker that gets one
acknowledges it.
"""

import logging
from collections.abc import Callable
from time import time
from typing import Any

from celery import bootsteps
from celery.worker import state
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
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading a message of another form raises. Errors of the connection are others."""


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


class DropForeign(bootsteps.StartStopStep):
    """Guards the two places where a consumer reads a message: as kombu wraps it, and as Celery
    wrote it."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        handlers = getattr(consumer.task_consumer.channel, "handlers", {})  # Redis's channel
        if "BRPOP" in handlers:
            handlers["BRPOP"] = _guard_reading(handlers["BRPOP"])
        handler_of = type(consumer).create_task_handler
        consumer.create_task_handler = lambda *args: _guard_handling(handler_of(consumer, *args))

    def stop(self, consumer: object) -> None:
        """Do nothing: the channel ends with its connection."""


def _guard_reading(read: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `read`, which takes a message off its queue; an unreadable one is gone."""

    def read_or_drop(**options: object) -> Any:
        try:
            return read(**options)
        except _UNREADABLE as error:
            logger.exception("dropped what is not a message: %s", type(error).__name__)
            return True

    return read_or_drop


def _guard_handling(handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `handle`, which passes a message to the pool; an unreadable one is acknowledged."""

    def handle_or_drop(message: Any) -> Any:
        try:
            return handle(message)
        except _UNREADABLE:
            logger.exception("dropped a message that is not a task: %.200r", message.body)
            if not message.acknowledged:
                message.ack()
            _forget(message)
            return None

    return handle_or_drop


def _forget(message: object) -> None:
    """Drop the request that Celery may have made of a message: it would keep it while it runs."""
    for request in list(state.requests.values()):
        if request.message is message:
            state.task_ready(request)
