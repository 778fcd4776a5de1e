"""Parquet files, read back by pyarrow and by DuckDB."""

import dataclasses
import io
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from completions.batches.export import parquet
from completions.batches.export.documents import dump
from completions.batches.export.encoding import ENCODINGS
from completions.batches.export.row_file import RowFile
from completions.batches.export.rows import ExportError
from completions.batches.export.types import infer_type, make_storable
from tests.acceptance.service import ROOT
from tests.completions.batches.export.results import answer, refusal, request, source
from tests.completions.batches.export.test_types import columns, stored

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]},
        "stars": {"type": ["integer", "null"]},
        "score": {"type": "number"},
        "again": {"type": "boolean"},
        "rooms": {"type": "array", "items": {"type": "object", "properties": {
            "name": {"type": "string"}, "beds": {"type": "integer"},
        }}},
        "more": {},
    },
}  # fmt: skip
DOCUMENT = {
    "mood": "good", "stars": 5, "score": 1, "again": True,
    "rooms": [{"name": "é", "beds": 2}, {"name": "b"}], "more": {"a": [1]},
}  # fmt: skip


def parquet_file(path):
    return RowFile(path, ENCODINGS["parquet"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.parquet"


def test_columns_have_the_types_of_the_schema(path):
    found = source(
        [request(name, SCHEMA) for name in "abc"],
        [answer(1, "a", dump(DOCUMENT)), answer(3, "c", '{"mood":"bad","stars":null}')],
        [refusal(2, "b")],
    )
    report = parquet_file(path).write(found)
    assert str(report) == f"3 rows in {path}, 1 with an error"
    table = pq.read_table(path)
    types = {field.name: str(field.type) for field in table.schema}
    assert types | {
        "mood": "string", "stars": "int64", "score": "double", "again": "bool", "more": "string",
        "rooms": "list<element: struct<name: string, beds: int64>>", "line": "int64",
    } == types  # fmt: skip
    first, second, third = table.to_pylist()
    assert {name: first[name] for name in DOCUMENT} == DOCUMENT | {
        "rooms": [{"name": "é", "beds": 2}, {"name": "b", "beds": None}], "more": '{"a":[1]}',
    }  # fmt: skip
    assert (second["custom_id"], second["error_code"]) == ("b", "decimal_above_max_value")
    assert (second["mood"], second["text"], second["rooms"]) == (None, None, None)
    assert (third["mood"], third["stars"], third["error_code"]) == ("bad", None, None)


def test_duckdb_reads_nested_columns(path):
    import duckdb  # at the end of the process, it reports what the garbage collection has left

    parquet_file(path).write(source([request("a", SCHEMA)], [answer(1, "a", dump(DOCUMENT))]))
    query = f"SELECT sum(room.beds) FROM (SELECT unnest(rooms) AS room FROM '{path}')"  # noqa: S608
    assert duckdb.sql(query).fetchall() == [(2,)]
    query = f"SELECT more->>'$.a[0]', mood, score FROM '{path}'"  # noqa: S608
    assert duckdb.sql(query).fetchall() == [("1", "good", 1.0)]


def test_values_that_do_not_fit_are_counted(path):
    schema = {"properties": {"n": {"type": "integer"}}}
    report = parquet_file(path).write(
        source([request("a", schema)], [answer(1, "a", f'{{"n":{2**63}}}'), answer(2, "b", "{")])
    )
    assert (report.misfits, report.not_whole) == (1, 1)
    assert "values that do not fit their columns: 1;" in str(report)
    assert pq.read_table(path, columns=["n", "text"]).to_pylist() == [
        {"n": None, "text": f'{{"n":{2**63}}}'}, {"n": None, "text": "{"},
    ]  # fmt: skip


def test_rows_are_streamed_in_groups(path, monkeypatch):
    monkeypatch.setattr(parquet, "GROUP_ROWS", 10)
    lines = [answer(n, f"r{n}", "x") for n in range(1, 26)]
    parquet_file(path).write(source([], lines))
    assert pq.ParquetFile(path).metadata.num_row_groups == 3
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1)
    parquet_file(path).write(source([], lines))
    assert pq.ParquetFile(path).metadata.num_row_groups == 25
    assert pq.read_table(path)["line"].to_pylist() == list(range(1, 26))


def test_no_rows_are_a_table_too(path):
    parquet_file(path).write(source([request("a", SCHEMA)], []))
    assert pq.read_table(path).num_rows == 0


@given(columns())
def test_any_document_can_be_read_back(tmp_path_factory, found):
    schema, documents = found
    path = tmp_path_factory.mktemp("export") / "results.parquet"
    lines = [answer(n, f"r{n}", dump(each)) for n, each in enumerate(documents, 1)]
    parquet_file(path).write(source([request("a", schema)], lines))
    rows = pq.read_table(path).to_pylist()
    fields = make_storable(infer_type(schema)).fields
    assert [{name: row[name] for name in fields} for row in rows] == [
        {name: stored(each.get(name), type) for name, type in fields.items()} for each in documents
    ]


KILLED = """
import os, signal, sys
import django
django.setup()
from pathlib import Path
from completions.batches.export import parquet
from tests.completions.batches.export.test_parquet import many, parquet_file
parquet.GROUP_ROWS = 100
portions = parquet.portions

def killed(*args):
    for n, rows in enumerate(portions(*args)):
        if n == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield rows

parquet.portions = killed
parquet_file(Path(sys.argv[1])).write(many())
"""


def many():
    return source([], [answer(n, f"r{n}", "x" * 100) for n in range(1, 1001)])


@pytest.mark.long
def test_a_killed_export_leaves_the_older_file_and_can_be_repeated(path):
    parquet_file(path).write(source([], [answer(1, "old", "x")]))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT, env=environment)
    assert done.returncode == -9
    assert pq.read_table(path)["custom_id"].to_pylist() == ["old"]
    parquet_file(path).write(many())
    assert pq.read_table(path)["custom_id"].to_pylist() == [f"r{n}" for n in range(1, 1001)]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_two_exports_do_not_write_the_same_file(path):
    whole = many()

    def opened():
        with pytest.raises(ExportError, match="another export is writing"):
            parquet_file(path).write(source([], [answer(1, "other", "x")]))
        return whole.results[0]()

    found = dataclasses.replace(whole, results=[opened])
    assert parquet_file(path).write(found).rows == 1000
    assert pq.read_table(path)["custom_id"].to_pylist() == [f"r{n}" for n in range(1, 1001)]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_failed_export_leaves_nothing(path):
    broken = dataclasses.replace(many(), results=[lambda: io.BytesIO(b"{")])
    with pytest.raises(ValueError):  # noqa: PT011 - whichever JSON library reads it
        parquet_file(path).write(broken)
    assert list(path.parent.iterdir()) == []


def test_a_missing_library_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"pip install -r requirements-export\.txt"):
        parquet_file(path).check()


def test_a_missing_folder_is_named(path):
    with pytest.raises(ExportError, match="is not a folder"):
        parquet_file(path.parent / "none" / "x.parquet").check()
    with pytest.raises(ExportError, match="cannot be written"):
        parquet_file(path.parent / "none" / "x.parquet").write(many())


def test_the_versions_are_the_pinned_ones():
    pins = (ROOT / "requirements-export.txt").read_text()
    assert f"pyarrow=={pyarrow.__version__}" in pins
