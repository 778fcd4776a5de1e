"""A file with the rows of a batch. It replaces an older one once it is complete, so nobody reads
half of it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from completions.batches.export.encoding import Encoding
from completions.batches.export.rows import ExportError, Source
from completions.batches.export.target import Report


class RowFile:
    """Nothing is kept of an interrupted export: the next one begins anew."""

    def __init__(self, path: Path, encoding: Encoding) -> None:
        self._path, self._encoding = path, encoding

    def check(self) -> None:
        self._encoding.check()
        if not self._path.absolute().parent.is_dir():
            raise ExportError(f"{self._path.parent} is not a folder")

    def write(self, source: Source) -> Report:
        self._encoding.check()
        columns = source.columns()
        draft = self._path.with_name(f".{self._path.name}.draft")
        report = Report(str(self._path))
        try:
            with self._alone(draft) as file:
                for piece in self._encoding.encode(source.rows(columns), columns.all, report):
                    file.write(piece)
                file.flush()
                draft.replace(self._path)
        except OSError as error:
            raise ExportError(f"{self._path} cannot be written: {error}") from error
        return report

    @contextmanager
    def _alone(self, draft: Path) -> Iterator[IO[bytes]]:
        """Create the draft for this process alone. A failure removes it."""
        with draft.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = draft.stat().st_ino == os.fstat(file.fileno()).st_ino
            except (BlockingIOError, FileNotFoundError):
                held = False  # or the other export has just ended
            if not held:
                raise ExportError(f"another export is writing {self._path}")
            try:
                file.truncate(0)  # a killed export may have left its beginning
                yield file
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
