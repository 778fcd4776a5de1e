"""Whether processes run, seen from outside."""

import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE = 240.0


def is_running(pid: int) -> bool:
    """False for a process that has ended, even if nobody has asked for its exit code."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until_gone(pids: Iterable[int]) -> None:
    """Wait until none of them runs."""
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"{left} stay behind"
        time.sleep(0.05)
