"""Whether processes and threads run, seen from outside."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PATIENCE = 240.0


def is_running(pid: int) -> bool:
    """False for a process that has ended, even if nobody has asked for its exit code."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, while the event loop runs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def until_gone(pids: Iterable[int]) -> None:
    """Wait until none of them runs."""
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"{left} stay behind"
        time.sleep(0.05)


def until_other_threads_sleep() -> None:
    """Wait until no thread of this process but the caller's has used a processor for 20 looks."""
    deadline, quiet = time.monotonic() + PATIENCE, 0
    while quiet < 20:
        assert time.monotonic() < deadline, "a thread still runs"
        time.sleep(0.005)
        quiet = 0 if _has_running_threads() else quiet + 1


def _has_running_threads() -> bool:
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == threading.get_native_id():
            continue
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state == "R":
            return True
    return False
