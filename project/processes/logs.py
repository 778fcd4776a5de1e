"""Rotates and reads the log files of child processes."""

import itertools
import os
import shutil
from pathlib import Path

ROTATE_AT = 10 * 1024 * 1024
"""Bytes."""
KEPT = 3
"""Old files per log."""


def rotate(path: Path) -> None:
    """Move the content of a large log to NAME.log.1, and older files one number up.

    The child keeps the file open for appending, so the file is copied and truncated. A line written
    in between is lost.
    """
    if not path.exists() or path.stat().st_size <= ROTATE_AT:
        return
    old = [path.with_name(f"{path.name}.{number}") for number in range(KEPT, 0, -1)]
    for older, newer in itertools.pairwise(old):
        if newer.exists():
            newer.replace(older)
    shutil.copyfile(path, old[-1])
    os.truncate(path, 0)


def read_tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log; empty if there is no log."""
    try:
        text = path.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip("\n").split("\n")[-lines:])
