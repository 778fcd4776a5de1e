"""Rows of results, whatever became of the lines."""

import io

import pytest

from completions.batches.export.rows import ExportError, Source
from completions.batches.export.targets import parse_target
from tests.completions.batches.export.results import (
    BATCH,
    answer,
    refusal,
    request,
    source,
    unanswered,
)

SCHEMA = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}}


def rows(found, without=()):
    return list(found.rows(found.columns(), without))


def test_lines_of_both_files_are_in_the_order_of_the_input():
    found = source(
        [request(name, SCHEMA) for name in "abcd"],
        [answer(1, "a", '{"mood":"good"}'), answer(4, "d", '{"mood":"ba', "length")],
        [refusal(2, "b"), unanswered(3, "c")],
    )
    first, second, third, fourth = rows(found)
    assert (first.values["custom_id"], first.values["mood"]) == ("a", "good")
    assert (first.values["status_code"], first.values["completion_tokens"]) == (200, 3)
    assert (first.values["batch_id"], first.values["line"]) == (BATCH, 1)
    assert second.values["error_code"] == "decimal_above_max_value"
    assert (second.values["status_code"], second.values.get("mood")) == (400, None)
    assert (third.values["error_code"], third.values["status_code"]) == ("batch_cancelled", None)
    assert (fourth.values["finish_reason"], fourth.values.get("mood")) == ("length", None)
    assert [row.is_whole for row in (first, second, third, fourth)] == [True, True, True, False]
    assert [row.number for row in rows(found, {1, 3})] == [2, 4]


def test_an_answer_of_another_type_leaves_its_columns_empty():
    found = source([request("a", SCHEMA)], [answer(1, "a", "[1]")])
    (row,) = rows(found)
    assert not row.is_whole
    assert row.values["text"] == "[1]"


def test_a_call_of_a_tool_is_no_cut_answer():
    found = source([request("a", SCHEMA, tools=[{}])], [answer(1, "a", None)])
    (row,) = rows(found)
    assert row.is_whole


@pytest.mark.parametrize(
    "to", ["results.xlsx", "mysql://host/db/table", "postgresql://host/db", "postgresql://host"]
)
def test_other_targets_are_refused(to):
    with pytest.raises(ExportError, match="--to"):
        parse_target(to)


def test_a_password_is_not_repeated():
    with pytest.raises(ExportError) as error:
        parse_target("mysql://user:secret@host/db/table")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b"\xff", b'"body"'])
def test_a_file_of_something_else_is_no_input_file(line):
    def opened():
        return io.BytesIO(b"\n" + line)

    with pytest.raises(ExportError, match="line 2 of the input file is not a request"):
        Source(BATCH, False, opened, []).columns()
