"""The columns of a batch, from its requests."""

from completions.batches.export.columns import Collector
from completions.batches.export.types import ListOf, Scalar
from tests.completions.batches.export.results import request


def columns(*bodies, receipts=False):
    collector = Collector()
    for body in bodies:
        collector.see(body)
    return collector.columns(receipts)


def names(found):
    return [column.name for column in found.all]


def schema_of(**properties):
    return request("a", {"type": "object", "properties": properties})["body"]


OWN = [
    "custom_id", "text", "finish_reason", "status_code", "error_code", "error_message",
    "prompt_tokens", "completion_tokens", "batch_id", "line",
]  # fmt: skip


def test_without_a_schema_there_are_the_common_columns():
    assert names(columns({"prompt": [1, 2]})) == OWN
    assert names(columns()) == OWN
    several = columns({"prompt": [[1], [2]]}, {"tools": [{}]}, receipts=True)
    assert names(several) == [*OWN, "other_texts", "tool_calls", "receipt"]
    assert columns({"n": 2}).all[-1].type == ListOf(Scalar.TEXT)


def test_properties_become_columns_in_their_order():
    found = columns(schema_of(mood={"enum": ["good"]}, again={"type": "boolean"}))
    assert names(found)[:4] == ["custom_id", "mood", "again", "text"]
    assert [column.name for column in found.answer_columns] == ["mood", "again"]


def test_every_name_of_a_json_constraint_is_understood():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for body in (
        {"json_schema": schema}, {"json_schema": '{"properties": {"a": {"type": "integer"}}}'},
        {"guided_json": schema}, {"structured_outputs": {"json": schema}},
        {"grammar": {"type": "json_schema", "value": schema}},
    ):  # fmt: skip
        (column,) = columns(body).answer_columns
        assert (column.name, column.type) == ("a", Scalar.INTEGER), body


def test_other_constraints_and_refused_ones_give_no_columns():
    for body in (
        {"regex": "a"}, {"response_format": {"type": "text"}}, {"json_schema": "{"},
        {"json_schema": {}, "regex": "a"}, {"response_format": {"type": "other"}},
    ):  # fmt: skip
        assert names(columns(body)) == OWN


def test_an_answer_without_properties_is_one_column():
    (column,) = columns({"response_format": {"type": "json_object"}}).answer_columns
    assert (column.name, column.type) == ("answer", Scalar.JSON)
    (column,) = columns(
        {"json_schema": {"type": "array", "items": {"type": "string"}}}
    ).answer_columns
    assert column.type == ListOf(Scalar.TEXT)
    many = {f"p{n}": {"type": "string"} for n in range(301)}
    assert names(columns(schema_of(**many)))[:2] == ["custom_id", "answer"]


def test_lines_with_several_schemas_share_the_columns():
    found = columns(schema_of(a={"type": "integer"}), schema_of(a={"type": "number"}, b={}))
    assert [(each.name, each.type) for each in found.answer_columns] == [
        ("a", Scalar.NUMBER), ("b", Scalar.JSON),
    ]  # fmt: skip
    found = columns(schema_of(a={}), {"json_schema": {"type": "string"}})
    assert [each.name for each in found.answer_columns] == ["answer"]


def test_a_schema_for_each_line_takes_little_memory():
    bodies = ({"json_schema": {"properties": {f"p{n}": {}}}} for n in range(5100))
    (column,) = columns(*bodies).answer_columns
    assert (column.name, column.type) == ("answer", Scalar.JSON)


def test_names_that_are_taken_or_too_long_are_changed():
    long = "ü" * 60
    found = columns(
        schema_of(text={}, Custom_ID={}, answer_text={}, **{"a\nb": {}, long: {}, long + "x": {}})
    )
    shown = {each.property: each.name for each in found.answer_columns}
    assert shown["text"] == "answer_text"
    assert shown["Custom_ID"] == "answer_Custom_ID"
    assert shown["answer_text"] == "answer_answer_text"
    assert shown["a\nb"] == "answer_a_b"
    assert all(len(name.encode()) <= 63 for name in shown.values())
    assert len({name.casefold() for name in names(found)}) == len(names(found))


def test_the_names_of_postgresql_s_own_columns_are_changed():
    found = columns(schema_of(xmin={}, xmax={}, ymin={}, CTID={}))
    shown = [each.name for each in found.answer_columns]
    assert shown == ["answer_xmin", "answer_xmax", "ymin", "answer_CTID"]


def test_bodies_that_were_refused_give_no_columns():
    for body in ([], 7, None, "text"):
        assert names(columns(body)) == OWN


def test_a_schema_may_have_a_number_beyond_64_bits():
    (column,) = columns(schema_of(a={"type": "integer", "maximum": 10**30})).answer_columns
    assert column.type == Scalar.INTEGER
