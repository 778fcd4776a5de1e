"""The rows of an ended batch: one for each line, in the order of the input file."""

import heapq
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from django.utils import timezone

from completions.batches import files
from completions.batches.export import documents
from completions.batches.export.columns import OTHER_TEXTS, RECEIPT, TOOL_CALLS, Collector, Columns
from completions.batches.input_lines import decode_line, is_blank, split_lines
from completions.batches.lines import get_body, get_error, get_text, parse_line_number
from completions.batches.results.answers import count_tokens, list_choices
from completions.models import Batch, BatchStatus, File

Open = Callable[[], IO[bytes]]


class ExportError(Exception):
    """There is nothing to export, or no way to. The code is that of the API's error."""

    def __init__(self, message: str, code: str = "internal_error") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Source:
    """The files of an ended batch."""

    batch_id: str
    receipts: bool
    requests: Open
    results: Sequence[Open]

    def columns(self) -> Columns:
        """Read all requests. Raises ExportError."""
        collector = Collector()
        with self.requests() as lines:
            for number, text in enumerate(split_lines(lines), 1):
                if not is_blank(text):
                    collector.see(_body(number, text))
        return collector.columns(self.receipts)

    def rows(self, columns: Columns, without: Container[int] = ()) -> "Iterator[ExportRow]":
        """Yield the rows of all lines whose numbers are not in `without`."""
        with ExitStack() as stack:
            results = [stack.enter_context(each()) for each in self.results]
            for number, text in heapq.merge(*map(_number_lines, results)):
                if number not in without:
                    yield read_row(self.batch_id, number, text, columns)


@dataclass(frozen=True, slots=True)
class ExportRow:
    number: int
    values: Mapping[str, object]
    """By column: JSON values, which still have to be fitted to their types."""
    size: int
    """The bytes of the line."""
    is_whole: bool
    """Whether the answer was read, if the columns have room for one."""


def open_source(batch: Batch, requests: Path | None = None) -> Source:
    """Open the files of a batch; `requests` replaces an input file that was deleted. Raises
    ExportError."""
    if not batch.has_ended:
        message = f"{batch.id} is {batch.status}; export it once it has ended"
        raise ExportError(message, "nothing_to_export")
    if batch.status == BatchStatus.FAILED or batch.in_progress_at is None:
        message = f"{batch.id} {batch.status} before any line ran; it has no results"
        raise ExportError(message, "nothing_to_export")
    ids = [batch.input_file_id, batch.output_file_id, batch.error_file_id]
    by_id = File.objects.readable(timezone.now()).in_bulk(ids)
    result_ids = [
        file_id
        for file_id, lines in (
            (batch.output_file_id, batch.completed),
            (batch.error_file_id, batch.failed),
        )
        if lines
    ]
    if any(file_id not in by_id for file_id in result_ids):
        message = f"the files of {batch.id} were deleted or have expired"
        raise ExportError(message, "file_not_found")
    if requests is not None and not requests.is_file():
        raise ExportError(f"{requests} is not a file")
    if requests is None and batch.input_file_id not in by_id:
        raise ExportError(
            f"the input file of {batch.id}, whose schemas name the columns, was deleted or has "
            "expired; manage.py export takes a copy of it with --requests",
            "file_not_found",
        )

    def opener(file_id: str) -> Open:
        return partial(_open_file, by_id[file_id])

    def open_requests() -> IO[bytes]:
        assert requests is not None
        return requests.open("rb")

    sent = open_requests if requests is not None else opener(batch.input_file_id)
    return Source(batch.id, batch.receipts, sent, [opener(file_id) for file_id in result_ids])


def _open_file(file: File) -> IO[bytes]:
    try:
        return files.open_file(file)
    except File.DoesNotExist as error:
        raise ExportError(f"the content of {file.id} is lost", "file_not_found") from error


def _body(number: int, text: bytes) -> object:
    try:
        return json.loads(decode_line(text))["body"]
    except (ValueError, LookupError, TypeError) as error:
        message = f"line {number} of the input file is not a request of a batch"
        raise ExportError(message) from error


def _number_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    return ((parse_line_number(text), text) for text in split_lines(file))


def read_row(batch_id: str, number: int, text: bytes, columns: Columns) -> ExportRow:
    """Read the row of a line of output."""
    line = json.loads(text)
    body, error = get_body(line), get_error(line)
    values: dict[str, object] = {
        "custom_id": line["custom_id"],
        "status_code": (line["response"] or {}).get("status_code"),
        "error_code": error.get("code"),
        "error_message": error.get("message"),
        "batch_id": batch_id,
        "line": number,
        RECEIPT: line.get(RECEIPT),
    }
    is_whole = True
    if not error:
        values |= _read_choices(list_choices(body))
        used = count_tokens(body) if body.get("usage") else {}
        values |= {name: used.get(name) for name in ("prompt_tokens", "completion_tokens")}
        is_whole = _add_answer(values, columns)
    return ExportRow(number, values, len(text), is_whole)


def _read_choices(choices: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    texts = [get_text(choice) for choice in choices]
    return {
        "text": texts[0],
        "finish_reason": choices[0]["finish_reason"],
        OTHER_TEXTS: texts[1:],
        TOOL_CALLS: choices[0].get("message", {}).get("tool_calls"),
    }


def _add_answer(values: dict[str, Any], columns: Columns) -> bool:
    """Add the columns of the answer. Returns False if it is not a document that they can show."""
    answer_columns, text = columns.answer_columns, values["text"]
    if not answer_columns or text is None:
        return True
    try:
        document = documents.read(text)
    except documents.UnreadableError:
        return False
    if columns.whole:
        values[answer_columns[0].name] = document
        return True
    if not isinstance(document, dict):
        return False
    for column in answer_columns:
        values[column.name] = document.get(column.property)
    return True
