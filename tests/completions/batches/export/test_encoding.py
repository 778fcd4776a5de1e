"""Rows as JSON lines and CSV: whole documents, read back; few lines in memory."""

import csv
import io
import json

import pytest
from hypothesis import given

from completions.batches.export import encoding
from completions.batches.export.documents import dump
from completions.batches.export.encoding import ENCODINGS
from completions.batches.export.rows import ExportRow
from completions.spreadsheets import escape_formula
from tests.completions.batches.export.results import answer, refusal, request, source
from tests.completions.batches.export.test_types import columns


def encode(name, found):
    known = found.columns()
    return b"".join(ENCODINGS[name].begin(found.rows(known), known))


def made(found):
    schema, documents = found
    lines = [answer(n, f"r{n}", dump(each)) for n, each in enumerate(documents, 1)]
    return source([request("a", schema)], lines)


@given(columns())
def test_any_document_is_in_the_lines(found):
    text = encode("jsonl", made(found))
    assert text.count(b"\n") == len(text.splitlines()) == len(found[1])
    shown = made(found).columns().answer_columns
    for line, document in zip(text.splitlines(), found[1], strict=True):
        row = json.loads(line)
        assert {each.property: row[each.name] for each in shown} == {
            each.property: document.get(each.property) for each in shown
        }


@pytest.mark.wide
@given(columns())
def test_any_document_is_in_the_table(found):
    names, *rows = csv.reader(io.StringIO(encode("csv", made(found)).decode(), newline=""))
    assert names == [escape_formula(column.name) for column in made(found).columns().all]
    shown = made(found).columns().answer_columns
    for row, document in zip(rows, found[1], strict=True):
        cells = dict(zip(names, row, strict=True))
        for column in shown:
            value = document.get(column.property)
            if isinstance(value, str) or value is None:
                assert cells[escape_formula(column.name)] == escape_formula(value or "")
            else:
                assert json.loads(cells[escape_formula(column.name)]) == value


def test_a_table_has_refused_lines_and_text_of_any_kind():
    text = 'a "quoted", text\nof two lines'
    found = source([request("a"), request("b")], [answer(1, "a", text)], [refusal(2, "b")])
    first, second = csv.DictReader(io.StringIO(encode("csv", found).decode(), newline=""))
    assert (first["text"], first["line"], first["error_code"]) == (text, "1", "")
    assert (second["error_code"], second["error_message"]) == (
        "decimal_above_max_value", "too much",
    )  # fmt: skip


def test_no_text_of_a_table_is_a_formula():
    names = ("=cmd|'/C calc'!A0", "+a", "@b", "-c", "count")
    kinds = {name: {"type": "integer" if name == "count" else "string"} for name in names}
    schema = {"type": "object", "properties": kinds}
    document = {**dict.fromkeys(names, "=1+1"), "count": -5}
    found = source([request("=a", schema)], [answer(1, "=a", dump(document))])
    header, row = csv.reader(io.StringIO(encode("csv", found).decode(), newline=""))
    cells = [each for each in (*header, *row) if each.startswith(("=", "+", "-", "@"))]
    assert cells == ["-5"]
    assert row[header.index(f"'{names[0]}")] == "'=1+1"
    [line] = encode("jsonl", found).splitlines()
    assert json.loads(line)[names[0]] == "=1+1"


@pytest.mark.parametrize("name", ENCODINGS)
def test_few_rows_are_held_at_a_time(name, monkeypatch):
    """However many rows there are: each piece is made of the next ones only."""
    monkeypatch.setattr(encoding, "PIECE_ROWS", 10)
    monkeypatch.setattr(encoding.parquet, "GROUP_ROWS", 10)
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield ExportRow(taken, {"custom_id": str(taken), "error_code": None}, 100, True)

    known = source([request("a")], []).columns()
    pieces = ENCODINGS[name].begin(endless(), known)
    for count in range(1, 5):
        assert taken <= 10 * count + 1  # one is looked at ahead
        next(pieces)


@pytest.mark.parametrize(("name", "lines"), [("jsonl", 0), ("csv", 1)])
def test_no_rows(name, lines):
    assert encode(name, source([request("a")], [])).count(b"\n") == lines
