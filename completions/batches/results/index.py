"""The index of a batch's files: how each line ended, and where its output and its request are.

Without it, a page of results would have to read whole files. It is written together with the
files; 50,000 lines take some 6 MB of SQL.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from completions.batches import files
from completions.batches.input_lines import split_lines
from completions.batches.lines import get_body, get_error
from completions.batches.results.answers import list_choices
from completions.database.parts import parts
from completions.models import Batch, BatchResult, File

_BATCH_SIZE = 2000


class Index:
    """Collects the lines of one batch in the order of their numbers."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, bool, str, int, int]] = []

    def add(
        self, number: int, completed: bool, result: Mapping[str, object], place: int, size: int
    ) -> None:
        self._lines.append((number, completed, get_reason(result), place, size))

    def store(self, batch: Batch, alive: Callable[[], bool]) -> bool:
        """Store the index; the files must already be stored. Returns False if `alive` does."""
        if not alive():  # the rows may be those of the writer that took over
            return False
        BatchResult.objects.filter(batch=batch).delete()
        for part in parts(self._rows(batch), _BATCH_SIZE):
            if not alive():
                return False
            BatchResult.objects.bulk_create(part)
        return True

    def _rows(self, batch: Batch) -> Iterator[BatchResult]:
        sent = _locate_lines(batch, (number for number, *_ in self._lines))
        for line, (sent_place, sent_size) in zip(self._lines, sent, strict=True):
            number, completed, reason, place, size = line
            yield BatchResult(
                batch=batch,
                number=number,
                completed=completed,
                reason=reason,
                place=place,
                size=size,
                sent_place=sent_place,
                sent_size=sent_size,
            )


def _locate_lines(batch: Batch, numbers: Iterable[int]) -> Iterator[tuple[int | None, int]]:
    """Yield the byte offset and the size of each of these lines of the input file, in ascending
    order; None if the file is gone. One line is in memory at a time: a file may have millions of
    blank ones."""
    try:
        opened = files.open_file(File.objects.get(id=batch.input_file_id))
    except File.DoesNotExist:
        yield from ((None, 0) for _ in numbers)
        return
    with opened as content:
        lines, end = enumerate(split_lines(content), 1), 0
        for target in numbers:
            for number, text in lines:
                end += len(text)
                if number == target:
                    yield end - len(text), len(text)
                    break
            else:
                yield None, 0


def get_reason(result: Mapping[str, object]) -> str:
    """Return the finish reason of the first choice, or the error's code."""
    body, error = get_body(result), get_error(result)
    reason = error.get("code")
    if body and not error:
        reason = list_choices(body)[0]["finish_reason"]
    return str(reason or "unknown")[:64]
