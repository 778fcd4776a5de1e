"""Drops messages that no worker can read. Celery would end the worker, and then the next one that
gets the message."""

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.worker import state

logger = logging.getLogger(__name__)

_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading a message of another form raises. Errors of the connection are others."""


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
