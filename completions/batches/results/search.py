"""Finds lines of an ended batch by how they ended and by their text, in bounded time.

How a line ended is a column of the index. Text is searched in the stored files, from the last line
that the reader has and for a bounded time; the next page continues from there.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import IO

import orjson
from django.db.models import Count, QuerySet
from django.utils import timezone

from completions.batches import files
from completions.batches.input_lines import decode_line
from completions.contract.strict_json import encode_line, escape_line_breaks
from completions.models import Batch, BatchResult, File
from completions.models.parts import portions

_BATCH_SIZE = 500
_MAX_BYTES = 4 * 1024 * 1024
"""Bytes of output lines that are read together; a longer line is read alone."""
_PAGE_BYTES = 8 * 1024 * 1024
"""A page of longer lines has fewer of them, but at least one."""
_GAP = 64 * 1024
"""The largest gap in bytes between two lines that is read rather than skipped."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria that lines must meet; None or empty matches every line."""

    completed: bool | None = None
    reason: str = ""
    text: str = ""
    """A substring of the output line; matching ignores the case of A to Z."""

    def rows(self, batch: Batch, after: int = 0) -> QuerySet[BatchResult]:
        rows = BatchResult.objects.filter(batch=batch, number__gt=after).order_by("number")
        if self.completed is not None:
            rows = rows.filter(completed=self.completed)
        return rows.filter(reason=self.reason) if self.reason else rows


@dataclass(frozen=True, slots=True)
class Page:
    """A page of lines, each with its output, and where the search ended."""

    lines: list[tuple[BatchResult, bytes]]
    searched: int
    """The number of the last line searched."""
    more: bool
    """Whether there are lines that were not searched yet."""


class Contents:
    """The readable files of a batch, open for reading. A context manager."""

    def __init__(self, batch: Batch) -> None:
        ids = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
        self._batch = batch
        self._files = File.objects.readable(timezone.now()).in_bulk(ids)
        self._open: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Contents":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def has(self, file_id: str) -> bool:
        return file_id in self._files

    def read_outputs(self, rows: list[BatchResult]) -> list[bytes]:
        """Read the output lines of some rows, in order. Adjacent lines are read together."""
        texts = [b""] * len(rows)
        for completed in (True, False):
            mine = [(i, row) for i, row in enumerate(rows) if row.completed == completed]
            file_id = self._batch.output_file_id if completed else self._batch.error_file_id
            for run in _group_neighbours(mine):
                begin = run[0][1].place
                end = run[-1][1].place + run[-1][1].size
                block = self._read(file_id, begin, end - begin)
                for i, row in run:
                    texts[i] = block[row.place - begin : row.place - begin + row.size]
        return texts

    def read_request(self, row: BatchResult) -> bytes:
        """Read the request of a line; empty if the input file is missing."""
        if row.sent_place is None or not self.has(self._batch.input_file_id):
            return b""
        return self._read(self._batch.input_file_id, row.sent_place, row.sent_size)

    def _read(self, file_id: str, place: int, size: int) -> bytes:
        if file_id not in self._files:
            return b""
        if file_id not in self._open:
            try:
                opened = files.open_file(self._files[file_id])
            except File.DoesNotExist:
                del self._files[file_id]
                return b""
            self._open[file_id] = self._stack.enter_context(opened)
        self._open[file_id].seek(place)
        return self._open[file_id].read(size)


def _group_neighbours(
    mine: list[tuple[int, BatchResult]],
) -> Iterator[list[tuple[int, BatchResult]]]:
    run: list[tuple[int, BatchResult]] = []
    for each in mine:
        if run and each[1].place - (run[-1][1].place + run[-1][1].size) > _GAP:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def iterate_matches(
    batch: Batch, criteria: Criteria, contents: Contents, after: int = 0
) -> Iterator[tuple[BatchResult, bytes | None]]:
    """Yield every line after `after` that the query finds, with its output, or with None if its
    text does not match."""
    # Files of earlier versions hold some characters raw that files now hold as escapes.
    terms = {encode(criteria.text)[1:-1].lower() for encode in (encode_line, orjson.dumps)}
    # Pages with `after`, not a cursor: a long transaction would hold up SQLite's checkpoints.
    while part := list(criteria.rows(batch, after)[:_BATCH_SIZE]):
        for some in portions(part, _BATCH_SIZE, _MAX_BYTES, lambda row: row.size):
            for row, text in zip(some, contents.read_outputs(some), strict=True):
                yield row, text if any(term in text.lower() for term in terms) else None
        after = part[-1].number


def find_page(
    batch: Batch, criteria: Criteria, contents: Contents, after: int, most: int, seconds: float
) -> Page:
    """Find at most `most` matching lines after a number, within a bounded time."""
    late = time.monotonic() + seconds
    if not criteria.text:  # SQL alone suffices
        rows = list(criteria.rows(batch, after)[: most + 1])
        page = _fit_page(rows[:most])
        last = page[-1].number if page else after
        outputs = contents.read_outputs(page)
        return Page(list(zip(page, outputs, strict=True)), last, len(rows) > len(page))
    lines: list[tuple[BatchResult, bytes]] = []
    size = 0
    for count, (row, text) in enumerate(iterate_matches(batch, criteria, contents, after)):
        is_full = len(lines) == most or (lines and size + row.size > _PAGE_BYTES)
        if is_full or (count and time.monotonic() > late):
            return Page(lines, after, True)
        after = row.number
        if text is not None:
            lines.append((row, text))
            size += row.size
    return Page(lines, after, False)


def _fit_page(rows: list[BatchResult]) -> list[BatchResult]:
    """Return the first of these rows, within _PAGE_BYTES."""
    sizes = accumulate(row.size for row in rows)
    return [
        row
        for n, (row, size) in enumerate(zip(rows, sizes, strict=True))
        if not n or size <= _PAGE_BYTES
    ]


def count_results(batch: Batch) -> list[tuple[bool, str, int]]:
    """Count all lines as (completed, reason, number of lines), most frequent first."""
    grouped = BatchResult.objects.filter(batch=batch).order_by().values_list("completed", "reason")
    counts = [(completed, reason, n) for completed, reason, n in grouped.annotate(n=Count("id"))]
    return sorted(counts, key=lambda each: -each[2])


def iterate_requests(batch: Batch, criteria: Criteria, contents: Contents) -> Iterator[bytes]:
    """Yield the requests of all matching lines, as they were sent."""
    for row, text in iterate_matches(batch, criteria, contents):
        if text is not None and (sent := decode_line(contents.read_request(row))):
            yield escape_line_breaks(sent.encode()) + b"\n"


def iterate_outputs(batch: Batch, criteria: Criteria, contents: Contents) -> Iterator[bytes]:
    """Yield the output lines that match, joined into pieces of about _MAX_BYTES."""
    piece = bytearray()
    for _, text in iterate_matches(batch, criteria, contents):
        piece += text or b""
        if len(piece) >= _MAX_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
