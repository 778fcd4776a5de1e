"""Rows as the bytes of a file: JSON lines, CSV or Parquet. Each is made piece by piece."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from completions.batches.export import documents, parquet
from completions.batches.export.columns import Column, Columns
from completions.batches.export.rows import ExportRow
from completions.batches.export.target import Report
from completions.contract.strict_json import escape_line_breaks
from completions.database.parts import portions
from completions.spreadsheets import escape_formula

PIECE_ROWS, PIECE_BYTES = 1000, 256 * 1024
"""Limits of the lines that become one piece."""
_Encode = Callable[[Iterable[ExportRow], Sequence[Column], Report], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Encoding:
    media_type: str
    encode: _Encode
    """Yields the file's bytes, and counts the rows in the report."""
    check: Callable[[], object] = lambda: None
    """Raises ExportError if a library is missing."""

    def begin(self, rows: Iterable[ExportRow], columns: Columns) -> Iterator[bytes]:
        """Return the pieces of the file, of which the first is made at once: so what is missing is
        known before any byte is sent. Raises ExportError."""
        self.check()
        pieces = self.encode(rows, columns.all, Report(""))
        return chain([next(pieces, b"")], pieces)


def _encode_jsonl(
    rows: Iterable[ExportRow], columns: Sequence[Column], report: Report
) -> Iterator[bytes]:
    """Yield an object for each row, whose values are as the answer has them."""
    names = [column.name for column in columns]
    for some in _divide(rows, report):
        objects = (documents.dump({name: row.values.get(name) for name in names}) for row in some)
        yield b"".join(escape_line_breaks(each.encode()) + b"\n" for each in objects)


def _encode_csv(
    rows: Iterable[ExportRow], columns: Sequence[Column], report: Report
) -> Iterator[bytes]:
    """Yield the names of the columns, then the rows. What is null is empty, values other than
    strings are JSON, and texts are no formulas: clients and models wrote them, and others open them
    in a spreadsheet."""
    names = [column.name for column in columns]
    yield _write_table([[escape_formula(name) for name in names]])
    for some in _divide(rows, report):
        yield _write_table([_show(row.values.get(name)) for name in names] for row in some)


def _write_table(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _show(value: object) -> str:
    if value is None:
        return ""
    return escape_formula(value) if isinstance(value, str) else documents.dump(value)


def _divide(rows: Iterable[ExportRow], report: Report) -> Iterator[list[ExportRow]]:
    for some in portions(rows, PIECE_ROWS, PIECE_BYTES, lambda row: row.size):
        for row in some:
            report.add(row)
        yield some


ENCODINGS: Mapping[str, Encoding] = {
    "jsonl": Encoding("application/jsonl", _encode_jsonl),
    "csv": Encoding("text/csv; charset=utf-8", _encode_csv),
    "parquet": Encoding(
        "application/vnd.apache.parquet", parquet.encode_parquet, parquet.load_library
    ),
}
"""By the name that is the suffix of files and the parameter `format`."""
