"""Rows in a table of a real PostgreSQL, where one answers."""

import os
import signal
import subprocess
import sys

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings

from completions.batches.export.columns import MAX_PROPERTIES
from completions.batches.export.documents import dump
from completions.batches.export.postgres import Table
from completions.batches.export.rows import ExportError
from completions.batches.export.types import infer_type, make_storable
from completions.models.storable import replace_nul
from tests.acceptance.service import ROOT
from tests.completions.batches.export.results import answer, refusal, request, source
from tests.completions.batches.export.test_parquet import DOCUMENT, SCHEMA
from tests.completions.batches.export.test_types import columns
from tests.postgresql import new_database


@pytest.fixture(scope="module")
def database():
    """The URL of a database of these tests alone."""
    with new_database() as url:
        yield url


@pytest.fixture
def connection(database):
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as connection:
        yield connection
        connection.execute('DROP TABLE IF EXISTS "Night"')


@pytest.fixture
def url(database, connection):
    return f"{database}/Night"


def found(connection, what="*"):
    cursor = connection.execute(f'SELECT {what} FROM "Night" ORDER BY line')  # noqa: S608
    names = [each.name for each in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def lines(count, text="x"):
    return [answer(n, f"r{n}", text) for n in range(1, count + 1)]


def test_columns_have_the_types_of_the_schema(url, connection):
    report = Table(url).write(
        source(
            [request(name, SCHEMA) for name in "abc"],
            [answer(1, "a", dump(DOCUMENT)), answer(3, "c", '{"mood":"bad\\u0000","stars":null}')],
            [refusal(2, "b")],
        )
    )
    assert str(report) == '3 rows in "Night", 1 with an error'
    first, second, third = found(connection)
    assert {name: first[name] for name in DOCUMENT} == DOCUMENT
    assert (second["custom_id"], second["error_code"]) == ("b", "decimal_above_max_value")
    assert (second["mood"], second["rooms"]) == (None, None)
    assert (third["mood"], third["stars"]) == ("bad\u2400", None)
    query = "SELECT sum((room->>'beds')::int) FROM \"Night\", jsonb_array_elements(rooms) AS room"
    assert connection.execute(query).fetchone() == (2,)


def test_a_custom_id_has_one_row_whatever_is_exported(url, connection):
    first = source([request("a", SCHEMA)], [answer(1, "a", '{"mood":"good"}')])
    for _ in range(2):
        report = Table(url).write(first)
    assert (report.rows, report.there) == (1, 1)
    later = source([], [answer(1, "b", "x"), answer(2, "a", "x")], receipts=True)
    object.__setattr__(later, "batch_id", "batch_later")
    Table(url).write(later)  # its schema is another one
    assert [(row["custom_id"], row["mood"], row["text"]) for row in found(connection)] == [
        ("b", None, "x"), ("a", "good", "x"),
    ]  # fmt: skip
    assert "receipt" in found(connection)[0]


def test_rows_that_were_deleted_are_written_again(url, connection):
    Table(url).write(source([], lines(30)))
    connection.execute('DELETE FROM "Night" WHERE line % 3 = 0')
    report = Table(url).write(source([], lines(30)))
    assert (report.rows, report.there) == (30, 20)
    assert [row["line"] for row in found(connection)] == list(range(1, 31))


EXPORT = """
import sys
import django
django.setup()
from completions.batches.export.postgres import Table
from tests.completions.batches.export.results import source
from tests.completions.batches.export.test_postgres import lines
Table(sys.argv[1]).write(source([], lines(3500)))
"""
WAIT = """
CREATE FUNCTION pg_temp_wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NEW; END $$;
CREATE TRIGGER wait BEFORE INSERT ON "Night" FOR EACH ROW WHEN (NEW.line = 2500)
EXECUTE FUNCTION pg_temp_wait();
"""


@pytest.mark.long
def test_a_killed_export_continues_where_it_was(url, connection):
    """It is killed inside its third transaction."""
    Table(url).write(source([], []))
    connection.execute(WAIT)
    connection.execute("SELECT pg_advisory_lock(42)")
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    running = subprocess.Popen([sys.executable, "-c", EXPORT, url], cwd=ROOT, env=environment)
    waiting = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    while connection.execute(waiting).fetchone() != (1,):
        assert running.poll() is None, "it ended too early"
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -9
    assert connection.execute('SELECT count(*) FROM "Night"').fetchone() == (2000,)
    connection.execute("SELECT pg_advisory_unlock(42)")
    report = Table(url).write(source([], lines(3500)))
    assert (report.rows, report.there) == (3500, 2000)
    assert [row["custom_id"] for row in found(connection)] == [f"r{n}" for n in range(1, 3501)]


def test_a_table_with_other_columns_is_refused(url, connection):
    Table(url).write(source([], []))
    connection.execute('ALTER TABLE "Night" ADD COLUMN mood integer')
    with pytest.raises(ExportError, match=r"column mood of .* is integer, and the rows have text"):
        Table(url).write(source([request("a", SCHEMA)], []))
    connection.execute('ALTER TABLE "Night" DROP CONSTRAINT "Night_pkey"')
    with pytest.raises(ExportError, match="unique"):
        Table(url).write(source([], lines(1)))


def test_a_table_of_something_else_stays_as_it_is(url, connection):
    connection.execute('CREATE TABLE "Night" (line bigint, name text)')
    with pytest.raises(ExportError, match='"Night" exists without the column custom_id'):
        Table(url).write(source([request("a", SCHEMA)], lines(1)))
    assert found(connection) == []
    assert [each.name for each in connection.execute('SELECT * FROM "Night"').description] == [
        "line", "name",
    ]  # fmt: skip


def test_names_with_a_percent_sign(database, connection):
    document = {"growth_%": 1.5, "%s": 2, "a%(b)s": 3}
    schema = {"type": "object", "properties": {name: {"type": "number"} for name in document}}
    rows = source([request("a", schema)], [answer(1, "a", dump(document))])
    for there in (0, 1):
        assert Table(f"{database}/Night%25s").write(rows).there == there
    read = connection.execute('SELECT "growth_%", "%s", "a%(b)s" FROM "Night%s"').fetchall()
    connection.execute('DROP TABLE "Night%s"')
    assert read == [tuple(document.values())]


@pytest.mark.parametrize("value", ["x" * 23, "0123456789abcdef" * 9, None, 1.5])
def test_a_row_has_room_for_all_columns(url, connection, value):
    document = {f"p{n}": value for n in range(MAX_PROPERTIES)}
    kind = {"type": "number" if value == 1.5 else "string"}
    schema = {"type": "object", "properties": dict.fromkeys(document, kind)}
    Table(url).write(source([request("a", schema)], [answer(1, "a", dump(document))]))
    (row,) = found(connection)
    assert {name: row[name] for name in document} == document


def test_a_schema_of_the_database_can_be_named(database, connection):
    connection.execute("CREATE SCHEMA nights")
    Table(f"{database}/nights.first%20one?application_name=quire").write(source([], lines(3)))
    assert connection.execute('SELECT count(*) FROM nights."first one"').fetchone() == (3,)


@pytest.mark.parametrize(
    "wrong", ["me:s%cret@h/db/t", "me:secret%ff@h/db/t", "me:a secret@h/db/t", "[secret/db/t"]
)
def test_a_url_that_cannot_be_read_is_not_shown(wrong):
    with pytest.raises(ExportError, match="--to is not a URL that PostgreSQL can read") as error:
        Table(f"postgresql://{wrong}")
    assert "cret" not in str(error.value)


def test_a_server_that_does_not_answer_is_an_error():
    with pytest.raises(ExportError, match="PostgreSQL: connection") as error:
        Table("postgresql://me:secret@127.0.0.1:1/db/table").check()
    assert "secret" not in str(error.value)


@pytest.mark.wide
@given(found=columns())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_any_document_can_be_read_back(url, connection, found):
    connection.execute('DROP TABLE IF EXISTS "Night"')
    schema, documents = found
    rows = [answer(n, f"r{n}", dump(each)) for n, each in enumerate(documents, 1)]
    Table(url).write(source([request("a", schema)], rows))
    cursor = connection.execute('SELECT * FROM "Night" ORDER BY line')
    names = [each.name for each in cursor.description]
    read = [dict(zip(names, row, strict=True)) for row in cursor]
    for row, document in zip(read, documents, strict=True):
        for name in make_storable(infer_type(schema)).fields:
            assert as_jsonb(row[name]) == as_jsonb(document.get(name))


def as_jsonb(value):
    """The value without what PostgreSQL does not keep: U+0000, and whether a number has a point."""
    value = replace_nul(value)
    if isinstance(value, list):
        return [as_jsonb(each) for each in value]
    if isinstance(value, dict):
        return {name: as_jsonb(each) for name, each in value.items()}
    return float(value) if isinstance(value, int) else value
