"""The folder in which the ranks of a group find one another.

Rank 0 makes it and holds a lock in it. The system releases the lock however rank 0 ends, so that a
later rank 0 can remove what a killed one left behind.
"""

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "quire-ranks-"
_LOCK = "lock"


class Rendezvous:
    """A new folder at ``path``, until :meth:`remove`."""

    def __init__(self) -> None:
        _remove_abandoned()
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        self.path = Path(self._folder.name)
        new = self.path / "new"
        self._lock = new.open("w")
        with suppress(OSError):  # a file system without locks: nobody removes the folder then
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)  # never seen without its lock

    def remove(self) -> None:
        self._folder.cleanup()
        self._lock.close()


def _remove_abandoned() -> None:
    """Remove the folders whose lock nobody holds, as far as this user may."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent)
