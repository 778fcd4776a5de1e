"""JSON Schemas as requests have them: answers in a fixed form, parameters of functions, and shapes
of the official test suite."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def strict(**properties: Schema) -> Schema:
    """As OpenAI's strict mode wants an object."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT: Schema = {"type": "string", "maxLength": 20}


def structured_outputs() -> Iterator[Schema]:
    """Answers in a fixed form: steps, events, trees, tagged unions."""
    step = strict(explanation=TEXT, output=TEXT)
    yield strict(steps={"type": "array", "items": step, "maxItems": 3}, final_answer=TEXT)
    yield strict(
        name=TEXT,
        date={"type": "string", "format": "date"},
        participants={"type": "array", "items": TEXT, "maxItems": 3},
    )
    person = strict(name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 120})
    yield {
        **strict(people={"type": "array", "items": {"$ref": "#/$defs/person"}, "maxItems": 2}),
        "$defs": {"person": person},
    }
    kind = {"type": "string", "enum": ["div", "button", "header", "section", "form"]}
    node = strict(
        type=kind, label=TEXT, children={"type": "array", "items": {"$ref": "#"}, "maxItems": 1}
    )
    yield node
    linked = strict(value={"type": "integer"}, next=nullable({"$ref": "#/$defs/link"}))
    yield {**strict(list={"$ref": "#/$defs/link"}), "$defs": {"link": linked}}
    cat = strict(kind={"const": "cat"}, lives={"type": "integer", "minimum": 1, "maximum": 9})
    dog = strict(kind={"const": "dog"}, tricks={"type": "array", "items": TEXT, "maxItems": 2})
    for union in ("anyOf", "oneOf"):
        yield {union: [cat, dog]}
        yield strict(pets={"type": "array", "items": {union: [cat, dog]}, "maxItems": 2})
    yield strict(
        verdict={"enum": ["violates", "fine"]},
        category=nullable({"enum": ["a", "b"]}),
        reason=nullable(TEXT),
    )
    yield strict(a={"type": ["string", "null"], "maxLength": 4}, b={"type": ["number", "null"]})
    yield {
        **strict(tree={"$ref": "#/$defs/n"}),
        "$defs": {
            "n": {
                "anyOf": [
                    {"type": "integer"},
                    {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2},
                ]
            }
        },
    }


def functions() -> Iterator[Schema]:
    """Parameters of functions, loosely typed as they come."""
    text, integer = {"type": "string", "description": "…", "maxLength": 16}, {"type": "integer"}
    unit = {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}
    yield {
        "type": "object",
        "properties": {"location": text, "unit": unit},
        "required": ["location"],
    }
    yield {"type": "object", "properties": {}}
    yield {"type": "object", "properties": {}, "additionalProperties": False}
    yield {
        "type": "object",
        "properties": {
            "query": text,
            "limit": {**integer, "minimum": 1, "maximum": 50},
            "filters": {"type": "object", "additionalProperties": text},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    yield {
        "type": "object",
        "properties": {
            "sql": text,
            "parameters": {
                "type": "array",
                "items": {"type": ["string", "number", "boolean", "null"], "maxLength": 8},
                "maxItems": 3,
            },
        },
        "required": ["sql"],
        "additionalProperties": False,
    }
    yield {
        "type": "object",
        "properties": {
            "path": text,
            "mode": {"type": "string", "pattern": "^[0-7]{3}$"},
            "recursive": {"type": "boolean", "default": False},
        },
        "required": ["path", "mode"],
        "additionalProperties": False,
    }
    point = {
        "type": "array",
        "prefixItems": [
            {"type": "number", "minimum": -90, "maximum": 90},
            {"type": "number", "minimum": -180, "maximum": 180},
        ],
        "items": False,
        "minItems": 2,
    }
    yield {
        "type": "object",
        "properties": {"from": point, "to": point},
        "required": ["from", "to"],
        "additionalProperties": False,
    }
    yield {
        "type": "object",
        "properties": {
            "email": {"type": "string", "format": "email"},
            "at": {"type": "string", "format": "date-time"},
            "cc": {"type": "array", "items": {"type": "string", "format": "email"}, "maxItems": 2},
        },
        "required": ["email", "at"],
        "additionalProperties": False,
    }


def suite() -> Iterator[Schema]:
    """Shapes that the official test suite of JSON Schema asks about."""
    yield {"properties": {"foo": {}}, "type": "object"}
    yield {
        "properties": {"foo": {"type": "object", "properties": {"bar": {"type": "null"}}}},
        "type": "object",
        "required": ["foo"],
    }
    yield {"$ref": "#/definitions/a%25b", "definitions": {"a%b": {"type": "integer"}}}
    yield {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "boolean"}}}
    yield {"$ref": "#named", "$defs": {"d": {"$anchor": "named", "type": "null"}}}
    yield {
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
        "type": "object",
    }
    yield {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"properties": {"b": {"const": 1}}, "required": ["b"]}],
    }
    yield {"type": "integer", "anyOf": [{"maximum": -5}, {"minimum": 5}]}
    yield {
        "items": [{"type": "null"}, {"type": "integer"}],
        "additionalItems": False,
        "type": "array",
        "minItems": 1,
        "$schema": DRAFT_7,
    }
    yield {
        "items": [{"type": "null"}],
        "additionalItems": {"type": "boolean"},
        "type": "array",
        "maxItems": 3,
        "$schema": DRAFT_7,
    }
    yield {
        "type": "object",
        "patternProperties": {"^[a-c]$": {"type": "integer"}},
        "properties": {"zed": {"type": "null"}},
        "additionalProperties": {"type": "boolean"},
    }
    yield {"type": "object", "properties": {"a": True, "b": False}, "additionalProperties": False}
    yield {"minimum": 3, "maximum": 5, "type": "number", "title": "t", "examples": [4]}
    yield {"minLength": 2, "type": ["string", "integer"], "maximum": 5, "maxLength": 3}
    yield {"enum": [{"foo": False}, [0], 12]}
    yield {"const": [{"b": None}]}
    yield {
        "type": "object",
        "properties": {"\u00e9": {"const": "\u00e9"}, "\t": {"const": 0}},
        "required": ["\u00e9", "\t"],
        "additionalProperties": False,
    }
    yield {
        "exclusiveMaximum": True,
        "maximum": 3,
        "minimum": 0,
        "type": "integer",
        "$schema": DRAFT_4,
    }
