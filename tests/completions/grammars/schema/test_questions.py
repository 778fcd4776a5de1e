"""What a schema says of a value, or of a part of one."""

from typing import Any

import pytest

from completions.grammars.schema.questions import ANY_KIND, MAYBE, NO, YES, Answer, SchemaQuestions

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        (TEXT, {"string"}),
        (NUMBER, {"number", "integer"}),
        ({"anyOf": [TEXT, {"const": None}]}, {"string", "null"}),
        ({"anyOf": [TEXT, {}]}, ANY_KIND),
        ({"type": "string", "allOf": [{"anyOf": [TEXT, NUMBER]}]}, {"string"}),
        ({"allOf": [TEXT, NUMBER]}, set()),
    ],
)
def test_schemas_that_hold_together_share_kinds_and_options_add_them(
    schema: Any, kinds: set[str]
) -> None:
    questions = SchemaQuestions({"properties": {"a": schema}, "additionalProperties": TEXT})
    assert questions.list_kinds(("a",)) == kinds
    assert questions.list_kinds(("b",)) == {"string"}
    assert SchemaQuestions({"properties": {"a": schema}}).list_kinds(("b",)) is None


@pytest.mark.parametrize(
    ("schema", "value", "answer"),
    [
        (NUMBER, 1, YES),
        (NUMBER, "1", NO),
        ({"pattern": "x"}, "1", MAYBE),
        ({"anyOf": [{"pattern": "x"}, TEXT]}, "1", YES),
        ({"anyOf": [TEXT, NUMBER], "oneOf": [NUMBER, {"type": "null"}]}, 1, YES),
        ({"anyOf": [TEXT, NUMBER], "oneOf": [NUMBER, {"type": "null"}]}, "1", NO),
        ({"properties": {"x": {"$ref": "#"}}, "maxItems": 1}, {"x": [1, 2]}, NO),
        ({"items": {"$ref": "#"}, "prefixItems": [{}]}, [[1]], MAYBE),
    ],
)
def test_a_value_is_an_instance_or_none_or_it_is_undecided(
    schema: Any, value: object, answer: Answer
) -> None:
    assert SchemaQuestions(schema).check(value, ()) == answer
