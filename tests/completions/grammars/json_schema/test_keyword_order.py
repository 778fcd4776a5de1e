"""Keywords that count together, with another one between them."""

from typing import Any

import pytest

from completions.grammars import json_schema
from tests.completions.grammars.byte_matcher import accepts

NULLS: dict[str, Any] = {"items": [{"type": "null"}]}
FLAGS: dict[str, Any] = {"additionalItems": {"type": "boolean"}}
MINIMUM: dict[str, Any] = {"minimum": 1}
MAXIMUM: dict[str, Any] = {"maximum": 1}
OVER: dict[str, Any] = {"exclusiveMinimum": True}
UNDER: dict[str, Any] = {"exclusiveMaximum": True}
NAMES: dict[str, Any] = {"patternProperties": {"^a": {}}}
CLOSED: dict[str, Any] = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("one", "other", "instance", "wrong"),
    [
        (NULLS, FLAGS, "[null,true]", "[null,1]"),
        (FLAGS, NULLS, "[null,true]", "[null,1]"),
        (MINIMUM, OVER, "2", "1"),
        (OVER, MINIMUM, "2", "1"),
        (MAXIMUM, UNDER, "0", "1"),
        (UNDER, MAXIMUM, "0", "1"),
        (NAMES, CLOSED, '{"ab":1}', '{"b":1}'),
        (CLOSED, NAMES, '{"ab":1}', '{"b":1}'),
    ],
)
@pytest.mark.parametrize("between", [{"allOf": [{}]}, {"anyOf": [{}]}, {"$ref": "#/$defs/any"}])
def test_both_hold(
    one: dict[str, Any], other: dict[str, Any], instance: str, wrong: str, between: dict[str, Any]
) -> None:
    schema = {**one, **between, **other, "$defs": {"any": {}}}
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, instance)
    assert not accepts(grammar, wrong)


def test_properties_keep_their_order() -> None:
    schema = {
        "type": "object",
        "additionalProperties": {"type": "null"},
        "allOf": [{"properties": {"z": {}}}],
        "properties": {"a": {}},
    }
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"z":null,"a":1}')
    assert not accepts(grammar, '{"a":1,"z":null}')
