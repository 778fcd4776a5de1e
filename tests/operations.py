"""Work counted in executed lines of Python, which no busy machine changes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Operations:
    """The number of lines that one thread has executed."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
        return self._trace


@contextmanager
def counted_operations() -> Iterator[Operations]:
    """Count the lines of Python that the block executes in this thread. A loop within one line
    counts once for each pass. Calls into C count nothing."""
    operations = Operations()
    before = sys.gettrace()
    sys.settrace(operations._trace)
    try:
        yield operations
    finally:
        sys.settrace(before)
