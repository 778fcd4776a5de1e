"""The log files of child processes: rotated when a child starts, their end shown in messages."""

import itertools
import os
import shutil
from pathlib import Path

ROTATE_AT = 10 * 1024 * 1024
"""Bytes."""
KEPT = 3


def rotate(path: Path) -> None:
    """Move a large log's content away: NAME.log.1 is the newest old one.

    The child may hold the file open. It appends, so the file is copied and emptied under it; a line
    written between the two is lost.
    """
    if not path.exists() or path.stat().st_size <= ROTATE_AT:
        return
    old = [path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1)]
    for newer, older in reversed(list(itertools.pairwise(old))):
        if newer.exists():
            newer.replace(older)
    shutil.copyfile(path, old[0])
    os.truncate(path, 0)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        text = path.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
