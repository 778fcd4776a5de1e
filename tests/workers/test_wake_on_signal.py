"""A signal ends the wait of Celery's event loop."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

from kombu.asynchronous.hub import Hub

from workers.wake_on_signal import WakeOnSignal


def test_a_signal_ends_the_wait() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    consumer: Any = SimpleNamespace(hub=Hub(), timer=None)
    step = WakeOnSignal(consumer)
    step.start(consumer)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        [(fd, _)] = consumer.hub.poller.poll(20)
        callback, arguments = consumer.hub.readers[fd]
        callback(*arguments)
        assert not consumer.hub.poller.poll(0)
    finally:
        step.stop(consumer)
        signal.signal(signal.SIGUSR1, before)
    assert not consumer.hub.readers
