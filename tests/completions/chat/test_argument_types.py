"""An argument of a GLM call becomes what the tool's schema says it is."""

import json
from typing import Any

import pytest

from completions.chat.argument_types import ArgumentTypes

STRING = {"type": "string"}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": STRING},
    "required": ["x"],
    "additionalProperties": False,
}


def nested(schema: Any, levels: int) -> Any:
    """The schema in as many unions of one."""
    return nested({"anyOf": [schema]}, levels - 1) if levels else schema


def read(schema: Any, text: str, **root: Any) -> Any:
    """The value of the argument `a`, whose schema is given."""
    reader = ArgumentTypes({"type": "object", "properties": {"a": schema}, **root})
    return text if reader.is_string(("a",)) else json.loads(reader.to_json(("a",), text))


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [STRING, {"type": "integer"}]}, "5", 5),
        ({"anyOf": [STRING, {"type": "integer"}]}, "5.5", "5.5"),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"type": ["string", "array"], "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": ["string", "array"], "items": {"type": "integer"}}, "[1, null]", "[1, null]"),
        ({"anyOf": [STRING, POINT]}, '{"x": 1}', {"x": 1}),
        ({"anyOf": [STRING, POINT]}, '{"x": 1, "label": "b"}', {"x": 1, "label": "b"}),
        ({"anyOf": [STRING, POINT]}, '{"label": "b"}', '{"label": "b"}'),
        ({"anyOf": [STRING, POINT]}, '{"x": 1, "y": 2}', '{"x": 1, "y": 2}'),
        (
            {"anyOf": [STRING, {"type": "object", "additionalProperties": {"type": "integer"}}]},
            '{"b": "c"}',
            '{"b": "c"}',
        ),
        ({"type": ["string", "array"], "items": {"enum": ["b"]}}, '["c"]', '["c"]'),
        (
            {"type": ["string", "array"], "items": {"type": "string", "minLength": 9}},
            '["c"]',
            '["c"]',
        ),
        (
            {"anyOf": [STRING, {"type": "array", "items": {"type": "string", "minLength": 1}}]},
            '["b", "c"]',
            ["b", "c"],
        ),
        (
            {"anyOf": [STRING, {"type": "array", "items": {"type": "string", "pattern": "b"}}]},
            '["b", "c"]',
            '["b", "c"]',
        ),
        ({"type": ["string", "integer"], "minLength": 3}, "5", 5),
    ],
)
def test_a_value_that_certainly_matches_is_not_a_string(schema: Any, text: str, value: Any) -> None:
    assert read(schema, text) == value


WORDS = {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"enum": ["all"]}, WORDS]}, '["b", "c"]', ["b", "c"]),
        ({"anyOf": [{"enum": ["all"]}, WORDS]}, "all", "all"),
        ({"anyOf": [{"enum": ['["b"]']}, WORDS]}, '["b"]', '["b"]'),
        ({"anyOf": [{"const": "0"}, {"type": "integer", "multipleOf": 5}]}, "5", 5),
        ({"anyOf": [{"const": "all"}, {"type": "null"}]}, '"all"', "all"),
        ({"anyOf": [{"type": "string", "minLength": 9}, WORDS]}, '["b"]', ["b"]),
        ({"anyOf": [{"type": "string", "minLength": "9"}, WORDS]}, '["b"]', '["b"]'),
        ({"anyOf": [{"const": "all"}, nested(STRING, 20)]}, "[5]", "[5]"),
    ],
)
def test_a_text_that_the_schema_excludes_is_no_string(schema: Any, text: str, value: Any) -> None:
    assert read(schema, text) == value


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (
            {
                "anyOf": [
                    {"allOf": [{"$ref": "#/$defs/base"}, STRING]},
                    {"allOf": [{"$ref": "#/$defs/base"}, {"type": "object"}]},
                ]
            },
            '{"x": 1}',
            {"x": 1},
        ),
        ({"allOf": [{"$ref": "#/$defs/text"}, {"allOf": [{"$ref": "#/$defs/text"}]}]}, "5", "5"),
        ({"type": "string", "allOf": [{"type": ["string", "integer"]}]}, "5", "5"),
        ({"type": "number", "allOf": [{"type": "integer"}]}, "5", 5),
        ({"minimum": 10, "anyOf": [{"type": "integer", "minimum": 0}, STRING]}, "5", "5"),
        ({"enum": ["1", "2"], "anyOf": [{"enum": [1, 2, "1"]}, STRING]}, "1", "1"),
        ({"oneOf": [{"type": "string", "const": str(i)} for i in range(1200)]}, "5", "5"),
    ],
)
def test_keywords_that_hold_together(schema: Any, text: str, value: Any) -> None:
    definitions = {"base": {"description": "of both"}, "text": STRING}
    assert read(schema, text, **{"$defs": definitions}) == value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "anyOf": [{"minLength": 1}, {"pattern": "b"}]},
        {"allOf": [STRING]},
        {"allOf": [{"$ref": "#/$defs/s"}], "default": "b"},
        {"allOf": [STRING, {"minLength": 1}]},
        {"oneOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/s"}]},
        {"$ref": "#/$defs/s", "minLength": 1},
    ],
)
def test_keywords_beside_and_inside_a_union_say_that_it_is_a_string(schema: Any) -> None:
    assert read(schema, "5", **{"$defs": {"s": STRING}}) == "5"


@pytest.mark.parametrize(
    "root",
    [
        {"properties": {"a": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"anyOf": [{"properties": {"b": {}}}, {"properties": {"a": STRING}}]},
        {"allOf": [{"properties": {"b": {}}}, {"properties": {"a": STRING}}]},
        {"$ref": "#/$defs/root", "$defs": {"root": {"properties": {"a": STRING}}}},
        {"patternProperties": {"^a": STRING}},
    ],
)
def test_arguments_are_declared_anywhere_in_the_schema(root: Any) -> None:
    assert ArgumentTypes(root).is_string(("a",))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": ["string", "integer"]}, "9" * 400),
        ({"enum": ["b", 1e300]}, "9" * 400),
        (
            {"type": ["string", "array"], "items": {"$ref": "#/properties/a"}},
            "[" * 190 + "9" + "]" * 190,
        ),
    ],
)
def test_huge_values_are_read(schema: Any, text: str) -> None:
    assert read(schema, text) is not None


def test_a_schema_that_leads_back_to_itself_is_read_in_no_time() -> None:
    again = {"$ref": "#/properties/a"}
    union = {"anyOf": [again] * 12}
    assert read(union, "5") == 5
    lists = {"anyOf": [{"type": "array", "items": again}] * 12 + [STRING]}
    text = "[" * 60 + "5" + "]" * 60
    assert read(lists, text) == text
