"""A Parquet file. It replaces an older one once it is complete, so nobody reads half of it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from completions.batches.export.columns import Column
from completions.batches.export.documents import MisfitError, fit_value
from completions.batches.export.rows import ExportError, ExportRow, Source
from completions.batches.export.target import Report
from completions.batches.export.types import ListOf, Scalar, Struct, Type
from completions.models.parts import portions

SUFFIX = ".parquet"
GROUP_ROWS = 20_000
GROUP_BYTES = 16 * 1024 * 1024
"""Limits of a row group, which is in memory as a whole."""


class ParquetFile:
    """Nothing is kept of an interrupted export: the next one begins anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        _library()
        if not self._path.absolute().parent.is_dir():
            raise ExportError(f"{self._path.parent} is not a folder")

    def write(self, source: Source) -> Report:
        arrow, parquet = _library()
        columns = source.columns()
        schema = arrow.schema([(each.name, _arrow_type(each.type)) for each in columns.all])
        draft = self._path.with_name(f".{self._path.name}.draft")
        report = Report(str(self._path))
        try:
            with (
                self._alone(draft),
                closing(parquet.ParquetWriter(draft, schema, compression="zstd")) as writer,
            ):
                exported = source.rows(columns)
                for rows in portions(exported, GROUP_ROWS, GROUP_BYTES, lambda row: row.size):
                    fields = [_fields(row, columns.all, report) for row in rows]
                    writer.write_table(arrow.Table.from_pylist(fields, schema))
                writer.close()
                draft.replace(self._path)
        except OSError as error:
            raise ExportError(f"{self._path} cannot be written: {error}") from error
        return report

    @contextmanager
    def _alone(self, draft: Path) -> Iterator[None]:
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
                yield
            except BaseException:
                draft.unlink(missing_ok=True)
                raise


def _library() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        message = "Parquet needs pyarrow: pip install -r requirements-export.txt -c constraints.txt"
        raise ExportError(message) from error
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


def _fields(row: ExportRow, columns: tuple[Column, ...], report: Report) -> dict[str, object]:
    report.add(row)
    fields = {}
    for column in columns:
        try:
            fields[column.name] = fit_value(row.values.get(column.name), column.type)
        except MisfitError:
            fields[column.name] = None
            report.misfits += 1
    return fields
