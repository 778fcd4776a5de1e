"""The log files of child processes: rotated when a child starts, their end shown in messages."""

import itertools
from pathlib import Path

ROTATE_AT = 10 * 1024 * 1024
"""Bytes; looked at only when a child starts, since the child holds the file open."""
KEPT = 3


def rotate(path: Path) -> None:
    """Rename a large log away: NAME.log.1 is the newest old one."""
    if not path.exists() or path.stat().st_size <= ROTATE_AT:
        return
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1))]
    for newer, older in reversed(list(itertools.pairwise(names))):
        if newer.exists():
            newer.replace(older)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        text = path.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
