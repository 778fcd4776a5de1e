"""Rows in Parquet, one row group after another."""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from completions.batches.export.columns import Column
from completions.batches.export.documents import MisfitError, fit_value
from completions.batches.export.rows import ExportError, ExportRow
from completions.batches.export.target import Report
from completions.batches.export.types import ListOf, Scalar, Struct, Type
from completions.database.parts import portions

GROUP_ROWS = 20_000
GROUP_BYTES = 4 * 1024 * 1024
"""Limits of a row group, which is in memory as a whole."""


def encode_parquet(
    rows: Iterable[ExportRow], columns: Sequence[Column], report: Report
) -> Iterator[bytes]:
    """Yield the bytes of the file. Raises ExportError without pyarrow."""
    arrow, parquet = load_library()
    schema = arrow.schema([(each.name, _arrow_type(each.type)) for each in columns])
    buffer = io.BytesIO()
    with closing(parquet.ParquetWriter(buffer, schema, compression="zstd")) as writer:
        for group in portions(rows, GROUP_ROWS, GROUP_BYTES, lambda row: row.size):
            fields = [_fields(row, columns, report) for row in group]
            writer.write_table(arrow.Table.from_pylist(fields, schema))
            yield _take(buffer)
    yield _take(buffer)


def _take(buffer: io.BytesIO) -> bytes:
    """Return what was written since the last time. Arrow counts its position by itself."""
    piece = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return piece


def load_library() -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet. Raises ExportError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        message = "Parquet needs pyarrow: pip install -r requirements-export.txt -c constraints.txt"
        raise ExportError(message, "unsupported_value") from error
    return pyarrow, pyarrow.parquet


def _arrow_type(type: Type) -> object:
    import pyarrow

    match type:
        case ListOf(item):
            return pyarrow.list_(_arrow_type(item))
        case Struct(fields):
            return pyarrow.struct([(name, _arrow_type(each)) for name, each in fields.items()])
        case Scalar.INTEGER:
            return pyarrow.int64()
        case Scalar.NUMBER:
            return pyarrow.float64()
        case Scalar.BOOLEAN:
            return pyarrow.bool_()
    return pyarrow.string()


def _fields(row: ExportRow, columns: Sequence[Column], report: Report) -> dict[str, object]:
    report.add(row)
    fields = {}
    for column in columns:
        try:
            fields[column.name] = fit_value(row.values.get(column.name), column.type)
        except MisfitError:
            fields[column.name] = None
            report.misfits += 1
    return fields
