"""Ends a worker that hangs beyond Python's reach.

A step that takes too long is noticed by the relay. One that never gives up the interpreter's lock,
in a kernel or a C library, stops the relay as well; then only a thread that needs no lock can act.
"""

import faulthandler
import time
from collections.abc import Callable

AGAIN = 2.0
"""Seconds between two arrangements; each starts a thread."""


class Watchdog:
    """Fed by the relay; unless it is fed again within `patience` seconds, it writes where every
    thread stands to the log and ends the process."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._fed_at = float("-inf")

    def feed(self) -> None:
        now = self._clock()
        if now - self._fed_at >= AGAIN:
            self._fed_at = now
            faulthandler.dump_traceback_later(self._patience, exit=True, file=2)
