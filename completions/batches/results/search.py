"""Finds lines of an ended batch by how they ended and by what they answered, in bounded time.

How a line ended is a column of the index. Answers are searched in the stored files, from the last
line that the reader has and for a bounded time; the next page continues from there.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import IO, NamedTuple

import orjson
from django.db.models import Count, QuerySet
from django.utils import timezone

from completions.batches import files
from completions.batches.counted_fields import find_truncated, read_counted_values
from completions.batches.input_lines import decode_line
from completions.batches.lines import get_body, get_error, get_text
from completions.batches.results.answers import list_choices
from completions.batches.summary import OTHERS
from completions.contract.strict_json import encode_line, escape_line_breaks
from completions.database.parts import portions
from completions.models import Batch, BatchResult, File

_BATCH_SIZE = 500
_MAX_BYTES = 4 * 1024 * 1024
"""Bytes of output lines that are read together; a longer line is read alone."""
_PAGE_BYTES = 8 * 1024 * 1024
"""A page of longer lines has fewer of them, but at least one."""
_GAP = 64 * 1024
"""The largest gap in bytes between two lines that is read rather than skipped."""


class Counted(NamedTuple):
    """Answers that the summary of a batch counts together."""

    field: str
    """A pointer into the answer."""
    value: str | None
    """The JSON value there; None if max_tokens cut the answer there."""
    answers: int


def list_counted(batch: Batch) -> dict[str, Counted]:
    """Return what the summary counts, by names that an address can hold."""
    values = batch.summary.get("values", {})
    counted = {
        f"{field}={value}": Counted(field, value, count)
        for field, counts in values.items()
        for value, count in sorted(counts.items(), key=lambda each: -each[1])
        if value != OTHERS
    }
    cut = batch.summary.get("cut", {}).items()
    return counted | {
        f"cut{field}": Counted(field, None, count) for field, count in cut if field != OTHERS
    }


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria that lines must meet; None or empty matches every line."""

    completed: bool | None = None
    reason: str = ""
    text: str = ""
    """A substring of the output line; matching ignores the case of A to Z."""
    counted: Counted | None = None

    @property
    def reads_answers(self) -> bool:
        """Whether SQL alone does not suffice."""
        return bool(self.text) or self.counted is not None

    def rows(self, batch: Batch, start: int = 0, backward: bool = False) -> QuerySet[BatchResult]:
        """Return the lines after a number, or those before it from the last one on."""
        rows = BatchResult.objects.filter(batch=batch)
        if backward:
            rows = rows.filter(number__lt=start).order_by("-number")
        else:
            rows = rows.filter(number__gt=start).order_by("number")
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
        self.batch = batch
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
            file_id = self.batch.output_file_id if completed else self.batch.error_file_id
            for run in _group_neighbours(mine):
                begin = run[0][1].place
                end = run[-1][1].place + run[-1][1].size
                block = self._read(file_id, begin, end - begin)
                for i, row in run:
                    texts[i] = block[row.place - begin : row.place - begin + row.size]
        return texts

    def read_request(self, row: BatchResult) -> bytes:
        """Read the request of a line; empty if the input file is missing."""
        if row.sent_place is None or not self.has(self.batch.input_file_id):
            return b""
        return self._read(self.batch.input_file_id, row.sent_place, row.sent_size)

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
    criteria: Criteria, contents: Contents, start: int = 0, backward: bool = False
) -> Iterator[tuple[BatchResult, bytes | None]]:
    """Yield every line after `start` that the query finds, or before it, with its output, or with
    None if its answer does not match."""
    batch = contents.batch
    matches = _make_test(batch.counted_fields or {}, criteria)
    step = -1 if backward else 1
    # Pages with `start`, not a cursor: a long transaction would hold up SQLite's checkpoints.
    while part := list(criteria.rows(batch, start, backward)[:_BATCH_SIZE]):
        for some in portions(part, _BATCH_SIZE, _MAX_BYTES, lambda row: row.size):
            texts = contents.read_outputs(some[::step])[::step]
            for row, text in zip(some, texts, strict=True):
                yield row, text if matches(text) else None
        start = part[-1].number


def _make_test(fields: Mapping[str, object], criteria: Criteria) -> Callable[[bytes], bool]:
    """Return a function that tests an output line."""
    # Files of earlier versions hold some characters raw that files now hold as escapes.
    terms = {encode(criteria.text)[1:-1].lower() for encode in (encode_line, orjson.dumps)}
    wanted = criteria.counted

    def test(text: bytes) -> bool:
        lowered = text.lower() if criteria.text else b""
        is_found = any(term in lowered for term in terms)
        return is_found and (wanted is None or _is_counted(text, fields, wanted))

    return test


def _is_counted(text: bytes, fields: Mapping[str, object], wanted: Counted) -> bool:
    """Return whether the summary counted one of the line's answers there."""
    if not text.strip() or get_error(line := orjson.loads(text)):
        return False
    choices = list_choices(get_body(line))
    return any(wanted[:2] in _list_counts(choice, fields) for choice in choices)


def _list_counts(
    choice: Mapping[str, object], fields: Mapping[str, object]
) -> Iterator[tuple[str, str | None]]:
    answer = get_text(choice) or ""
    try:
        yield from read_counted_values(orjson.loads(answer), fields)
    except orjson.JSONDecodeError:
        if choice["finish_reason"] == "length":
            yield find_truncated(answer), None


def find_page(
    criteria: Criteria,
    contents: Contents,
    start: int,
    most: int,
    seconds: float,
    backward: bool = False,
) -> Page:
    """Find at most `most` matching lines after a number, or before it, within a bounded time."""
    late = time.monotonic() + seconds
    step = -1 if backward else 1
    if not criteria.reads_answers:
        rows = list(criteria.rows(contents.batch, start, backward)[: most + 1])
        page = _fit_page(rows[:most])
        last = page[-1].number if page else start
        page, has_more = page[::step], len(rows) > len(page)
        return Page(list(zip(page, contents.read_outputs(page), strict=True)), last, has_more)
    lines: list[tuple[BatchResult, bytes]] = []
    size = 0
    matches = iterate_matches(criteria, contents, start, backward)
    for count, (row, text) in enumerate(matches):
        is_full = len(lines) == most or (lines and size + row.size > _PAGE_BYTES)
        if is_full or (count and time.monotonic() > late):
            return Page(lines[::step], start, True)
        start = row.number
        if text is not None:
            lines.append((row, text))
            size += row.size
    return Page(lines[::step], start, False)


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


def iterate_requests(criteria: Criteria, contents: Contents) -> Iterator[bytes]:
    """Yield the requests of all matching lines, as they were sent."""
    for row, text in iterate_matches(criteria, contents):
        if text is not None and (sent := decode_line(contents.read_request(row))):
            yield escape_line_breaks(sent.encode()) + b"\n"
