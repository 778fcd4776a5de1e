"""The index of a batch's files: how each line ended, and where its output and its request are.

Without it, a page of results would have to read whole files. It is written together with the
files; 50,000 lines take some 6 MB of SQL.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from completions.batches.lines import body_of, error_of
from completions.models import Batch, BatchResult, File
from completions.models.parts import parts

_AT_ONCE = 2000


class Index:
    """Collects the lines of one batch in the order of their numbers."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, bool, str, int, int]] = []

    def add(
        self, number: int, completed: bool, result: Mapping[str, Any], place: int, size: int
    ) -> None:
        self._lines.append((number, completed, reason_of(result), place, size))

    def store(self, batch: Batch, alive: Callable[[], bool]) -> bool:
        """Store the index; the files must already be stored. Returns False if `alive` does."""
        if not alive():  # the rows may be those of the writer that took over
            return False
        BatchResult.objects.filter(batch=batch).delete()
        sent = _places(batch)
        for part in parts(self._lines, _AT_ONCE):
            if not alive():
                return False
            BatchResult.objects.bulk_create(_row(batch, line, sent) for line in part)
        return True


def _row(batch: Batch, line: tuple[int, bool, str, int, int], sent: "array[int]") -> BatchResult:
    number, completed, reason, place, size = line
    row = BatchResult(
        batch=batch, number=number, completed=completed, reason=reason, place=place, size=size
    )
    if number < len(sent):  # the request of line n is between these two offsets
        row.sent_place, row.sent_size = sent[number - 1], sent[number] - sent[number - 1]
    return row


def _places(batch: Batch) -> "array[int]":
    """The byte offset of each input line, then the end of the file; empty if there is no file."""
    places = array("Q")
    file = File.objects.filter(id=batch.input_file_id).first()
    if file is not None:
        places.append(0)
        with file.content.open("rb") as content:
            for line in content:
                places.append(places[-1] + len(line))
    return places


def reason_of(result: Mapping[str, Any]) -> str:
    """The finish reason of the first choice, or the error's code."""
    choices = body_of(result).get("choices") or [{}]
    error = error_of(result)
    reason = error.get("code") if error else choices[0].get("finish_reason")
    return str(reason or "unknown")[:64]
