"""Ends a process whose threads all hang.

The relay notices a step that takes too long. A step that never releases the GIL, in a kernel or a C
library, stops the relay too; then only a thread without Python can act.
"""

import faulthandler
import time
from collections.abc import Callable

RENEWAL = 2.0
"""Seconds between two renewals, each of which starts a thread."""


class Watchdog:
    """Writes the traceback of every thread to the log and ends the process unless it is fed within
    `patience` seconds. A worker's relay feeds it, or a web process's event loop."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._fed_at = float("-inf")

    def feed(self) -> None:
        now = self._clock()
        if now - self._fed_at >= RENEWAL:
            self._fed_at = now
            faulthandler.dump_traceback_later(self._patience, exit=True, file=2)

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()
