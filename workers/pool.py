"""The engine as Celery's pool: Celery receives, acknowledges and redelivers; the engine batches.

A worker of this pool is one process per device. The main thread consumes messages, the engine
thread steps the batch, the relay thread talks to Redis. Callbacks of finished jobs run in the relay
thread, never through the worker's event loop, which does not turn during a shutdown.
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
"""Seconds between two looks at whether the worker is to be drained."""


class Handle:
    """What Celery keeps of a job that was handed to the pool."""

    __slots__ = ("__weakref__", "job_id")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id

    def terminate(self, _signal: Any) -> None:
        """Jobs are cancelled through their record in Redis, which works for queued ones too."""


class EnginePool(BasePool):
    """Runs `generate` messages in the engine; subclassed with the relay of one model."""

    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = False
    relay_factory: ClassVar[Callable[[], Relay]]
    shutdown_grace: ClassVar[float]
    """Seconds that running jobs may go on after SIGTERM."""
    queue: ClassVar[str]
    """That its messages come from."""

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
        **_options: Any,
    ) -> Handle:
        """Celery hands over (task name, id, request with the decoded arguments, ...)."""
        name, _message_id, request, *_ = args
        if name != GENERATE:
            raise ValueError(f"an engine worker runs {GENERATE} only, not {name}")
        started = time.monotonic()
        accept_callback(os.getpid(), started)
        match request["args"]:
            case [str() as job_id]:
                pass
            case wrong:  # raising here would end the worker, and the next that gets the message
                logger.error("dropped a message that is not a job id: %.200r", wrong)
                callback((False, None, 0.0))
                return Handle("")
        self.relay.submit(job_id, lambda: callback((False, None, time.monotonic() - started)))
        return Handle(job_id)

    def on_stop(self) -> None:
        """A shutdown: running jobs end within the grace, the rest goes back to the queue."""
        self.relay.wait_idle(self.shutdown_grace)
        self.relay.stop()

    def on_terminate(self) -> None:
        """A shutdown that does not wait: everything goes back to the queue at once."""
        self.relay.stop()

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Celery's way to kill a process; there is none per job."""


class RefreshVisibility(bootsteps.StartStopStep):
    """Keeps the messages of this worker's jobs from being delivered again while it lives."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self.timer: Any = None

    def start(self, consumer: Any) -> None:
        interval = consumer.app.conf.broker_transport_options["visibility_timeout"] / 3
        self.timer = consumer.timer.call_repeatedly(interval, self.refresh, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def refresh(self, consumer: Any) -> None:
        now = time.time()
        tags = {
            request.message.delivery_tag: now
            for request in list(state.reserved_requests)
            if not request.acknowledged
        }
        if tags:
            channel = consumer.task_consumer.channel
            with channel.conn_or_acquire() as client:
                client.zadd(channel.unacked_index_key, tags, xx=True)


class FollowDrain(bootsteps.StartStopStep):
    """Stops consuming while the worker is to be drained. Celery remembers it when it connects anew;
    a message that was on its way goes back to its queue."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self.timer: Any = None

    def start(self, consumer: Any) -> None:
        self.timer = consumer.timer.call_repeatedly(FOLLOW_INTERVAL, self.follow, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def follow(self, consumer: Any) -> None:
        pool = consumer.pool
        if pool.relay.drain_wanted != pool.relay.accepting:
            return
        if pool.relay.accepting:
            consumer.cancel_task_queue(pool.queue)
        else:
            consumer.add_task_queue(pool.queue)
        pool.relay.accepting = not pool.relay.accepting
