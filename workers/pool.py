"""The engine as a Celery pool: Celery receives, acknowledges and redelivers; the engine batches.

A worker is one process per device. Its main thread consumes messages, the engine's thread runs
steps, the relay's thread talks to Redis. Callbacks of ended jobs run in the relay's thread, because
the worker's event loop stops during a shutdown.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

from celery import bootsteps
from celery.concurrency.base import BasePool
from celery.worker import state

from workers.relay import Relay

logger = logging.getLogger(__name__)

GENERATE = "workers.tasks.generate"
FOLLOW_INTERVAL = 0.5
"""Seconds between two checks whether an operator wants the worker drained."""


class Handle:
    """Celery's handle of a job in the pool."""

    __slots__ = ("__weakref__", "job_id")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id

    def terminate(self, _signal: object) -> None:
        """Do nothing: jobs are cancelled through their record in Redis, which works for queued ones
        too."""


class EnginePool(BasePool):
    """Runs `generate` messages in the engine. A subclass has the relay of one model."""

    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = False
    relay_factory: ClassVar[Callable[[], Relay]]
    shutdown_grace: ClassVar[float]
    """Seconds that running jobs get to end after SIGTERM."""
    queue: ClassVar[str]
    """The queue that the messages come from."""

    def on_start(self) -> None:
        self.relay = type(self).relay_factory()
        self.relay.start()

    def on_apply(  # type: ignore[override] # the base class declares no parameters
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        callback: Callable[[tuple[bool, None, float]], None],
        accept_callback: Callable[[int, float], None],
        **_options: object,
    ) -> Handle:
        """Take a message. `args` are (task name, id, request with the decoded arguments, ...)."""
        name, _message_id, request, *_ = args
        started = time.monotonic()
        accept_callback(os.getpid(), started)
        match request["args"]:
            case [str() as job_id] if name == GENERATE:
                pass
            case wrong:  # raising would end this worker, and the next one that gets the message
                logger.error("dropped a message that is not a job: %s %.200r", name, wrong)
                callback((False, None, 0.0))
                return Handle("")
        self.relay.submit(job_id, lambda: callback((False, None, time.monotonic() - started)))
        return Handle(job_id)

    def on_stop(self) -> None:
        """Shut down: running jobs may end within the grace period; the rest go back to the
        queue."""
        self.relay.wait_idle(self.shutdown_grace)
        self.relay.stop()

    def on_terminate(self) -> None:
        """Shut down at once: all jobs go back to the queue."""
        self.relay.stop()

    def terminate_job(self, pid: int, signal: object = None) -> None:
        """Do nothing: Celery ends a job by killing its process; here jobs have no process of their
        own."""


class _Periodic(bootsteps.StartStopStep):
    """Does something every few seconds while the worker consumes."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: object, **options: object) -> None:
        super().__init__(consumer, **options)
        self._timer: Any = None

    def interval(self, consumer: object) -> float:
        raise NotImplementedError

    def act(self, consumer: object) -> None:
        raise NotImplementedError

    def start(self, consumer: Any) -> None:
        self._timer = consumer.timer.call_repeatedly(self.interval(consumer), self.act, (consumer,))

    def stop(self, consumer: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class RefreshVisibility(_Periodic):
    """Keeps the broker from redelivering the messages of this worker's jobs while the worker
    lives."""

    def interval(self, consumer: Any) -> float:
        return float(consumer.app.conf.broker_transport_options["visibility_timeout"]) / 3

    def act(self, consumer: Any) -> None:
        now = time.time()
        # Its `reserved_requests` cannot be read while the relay's thread ends requests.
        tags = {
            request.message.delivery_tag: now
            for request in list(state.requests.values())
            if not request.acknowledged
        }
        if tags:
            channel = consumer.task_consumer.channel
            with channel.conn_or_acquire() as client:
                client.zadd(channel.unacked_index_key, tags, xx=True)


class FollowDrain(_Periodic):
    """Stops consuming while an operator wants the worker drained. Celery stays stopped when it
    reconnects; a message already on its way goes back to its queue."""

    def interval(self, consumer: object) -> float:
        return FOLLOW_INTERVAL

    def act(self, consumer: Any) -> None:
        pool = consumer.pool
        if pool.relay.drain_wanted != pool.relay.accepting:
            return
        if pool.relay.accepting:
            consumer.cancel_task_queue(pool.queue)
        else:
            consumer.add_task_queue(pool.queue)
        pool.relay.accepting = not pool.relay.accepting
