"""Lets a signal end Celery's wait for messages."""

import signal
import socket
from contextlib import suppress
from typing import Any

from celery import bootsteps


class WakeOnSignal(bootsteps.StartStopStep):
    """Wakes the event loop of a worker's consumer when a signal arrives.

    Celery only notes the signal and keeps waiting for a message or the next timer, for up to a
    second.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        consumer.hub.add_reader(self._reader, self._drain)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def stop(self, consumer: Any) -> None:
        signal.set_wakeup_fd(-1)
        consumer.hub.remove_reader(self._reader)
        self._reader.close()
        self._writer.close()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(512)
