"""A table in PostgreSQL. Rows are committed in portions, and an interrupted export continues."""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Composed, Identifier
from psycopg.types.json import Jsonb

from completions.batches.export.columns import OF_EVERY_EXPORT, Column, Columns
from completions.batches.export.documents import MisfitError, dump, fit_value
from completions.batches.export.rows import ExportError, ExportRow, Source
from completions.batches.export.target import Report
from completions.batches.export.types import Scalar, Type
from completions.database.parts import portions
from completions.models.storable import replace_nul

SCHEMES = ("postgresql", "postgres")
_PORTION_ROWS = 1000
_PORTION_BYTES = 8 * 1024 * 1024
"""Limits of a transaction."""
_CONNECT_SECONDS = 10
_TYPES = {
    Scalar.TEXT: "text",
    Scalar.INTEGER: "bigint",
    Scalar.NUMBER: "double precision",
    Scalar.BOOLEAN: "boolean",
}
_NO_URL = (
    "--to is not a URL that PostgreSQL can read. In a user or password, write every character but "
    "letters and digits as % and two hexadecimal digits, such as %40 for @; or set PGPASSWORD"
)
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""


class Table:
    """`postgresql://USER:PASSWORD@HOST:PORT/DATABASE/TABLE`, or SCHEMA.TABLE at the end."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ExportError(_NO_URL) from None
        database, _, name = parts.path.lstrip("/").rpartition("/")
        if not database or not name or "/" in database:
            raise ExportError(
                "--to needs a database and a table: postgresql://USER@HOST/DATABASE/TABLE"
            )
        self._url = parts._replace(path=f"/{database}").geturl()
        try:
            conninfo_to_dict(self._url)
        except (psycopg.Error, ValueError):  # whose messages may have the password
            raise ExportError(_NO_URL) from None
        self._options: dict[str, Any] = {}
        if "connect_timeout" not in parse_qs(parts.query):
            self._options["connect_timeout"] = _CONNECT_SECONDS
        self._parts = unquote(name).split(".", 1)
        self._name = Identifier(*self._parts)

    def check(self) -> None:
        with self._connect():
            pass

    def write(self, source: Source) -> Report:
        columns = source.columns()
        with self._connect() as connection:
            with connection.transaction():
                self._prepare(connection, columns)
            there = self._numbers(connection, source.batch_id)
            report = Report(self._name.as_string(connection), there=len(there))
            statement = self._upsert(columns)
            rows = source.rows(columns, there)
            for portion in portions(rows, _PORTION_ROWS, _PORTION_BYTES, lambda row: row.size):
                values = [_values(row, columns, report) for row in portion]
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany(statement, values)
            report.rows += report.there
        return report

    @contextmanager
    def _connect(self) -> Iterator["psycopg.Connection[object]"]:
        try:
            with psycopg.connect(self._url, autocommit=True, **self._options) as connection:
                yield connection
        except psycopg.Error as error:
            raise ExportError(f"PostgreSQL: {str(error).strip()}") from error

    def _prepare(self, connection: "psycopg.Connection[Any]", columns: Columns) -> None:
        """Create the table, or add missing columns. Raises ExportError for a foreign table."""
        name = self._name.as_string(connection)
        # Without this lock, two exports that create the same table at once would fail.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
        rows = [SQL("{} {}").format(Identifier(each.name), _type(each)) for each in columns.all]
        key = SQL("PRIMARY KEY ({})").format(Identifier("custom_id"))
        create = SQL("CREATE TABLE IF NOT EXISTS {} ({}, {})")
        connection.execute(create.format(self._name, SQL(", ").join(rows), key))
        types = dict(connection.execute(_COLUMNS, [name]).fetchall())
        _require_ours(name, types)
        for column in columns.all:
            expected = _type(column).as_string(connection)
            if column.name not in types:
                add = SQL("ALTER TABLE {} ADD COLUMN {} {}")
                place = Identifier(column.name)
                connection.execute(add.format(self._name, place, _type(column)))
            elif types[column.name] != expected:
                raise ExportError(
                    f"column {column.name} of {name} is {types[column.name]}, and the rows have "
                    f"{expected}; name another table"
                )

    def _numbers(self, connection: "psycopg.Connection[Any]", batch_id: str) -> set[int]:
        """Return the lines of the batch that are in the table."""
        table = _with_parameters(*self._parts)
        query = SQL("SELECT line FROM {} WHERE batch_id = %s").format(table)
        return {number for (number,) in connection.execute(query, [batch_id])}

    def _upsert(self, columns: Columns) -> Composed:
        names = [_with_parameters(each.name) for each in columns.all]
        changes = [SQL("{0} = excluded.{0}").format(name) for name in names]
        return SQL(
            "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT (custom_id) DO UPDATE SET {}"
        ).format(
            _with_parameters(*self._parts),
            SQL(", ").join(names),
            SQL(", ").join(SQL("%s") * len(names)),
            SQL(", ").join(changes),
        )


def _require_ours(table: str, columns: Container[str]) -> None:
    """Raise ExportError for a table that holds something else: it must not get our columns."""
    for name in OF_EVERY_EXPORT:
        if name not in columns:
            message = f"{table} exists without the column {name}, so it is not the table of an "
            raise ExportError(f"{message}export; name another table")


def _with_parameters(*names: str) -> Identifier:
    """Quote an identifier for a query with parameters, where psycopg reads %% as %."""
    return Identifier(*(name.replace("%", "%%") for name in names))


def _type(column: Column) -> SQL:
    return SQL(_TYPES[column.type] if _is_plain(column.type) else "jsonb")


def _is_plain(type: Type) -> TypeGuard[Scalar]:
    return isinstance(type, Scalar) and type in _TYPES


def _values(row: ExportRow, columns: Columns, report: Report) -> list[object]:
    report.add(row)
    values: list[object] = []
    for column in columns.all:
        value = replace_nul(row.values.get(column.name))  # PostgreSQL rejects U+0000
        if value is not None and not _is_plain(column.type):
            values.append(Jsonb(value, dumps=dump))
            continue
        try:
            values.append(fit_value(value, column.type))
        except MisfitError:
            values.append(None)
            report.misfits += 1
    return values
