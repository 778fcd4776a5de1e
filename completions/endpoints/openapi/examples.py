"""Examples of JSON values, and the schemas derived from them.

A response may gain fields, so no schema forbids additional properties.
"""

from typing import Any, NamedTuple

from completions.requests.fields.base import make_nullable

Shape = dict[str, object]
SCHEMAS: dict[str, Shape] = {}
"""Schemas that the document lists among its components and refers to by name."""
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


class Example(NamedTuple):
    """An example with its own schema, which is more precise than a derived one."""

    value: object
    schema: Shape
    is_optional: bool = False


def make_schema(example: object) -> Shape:
    """Return the JSON Schema of an example: keys are required unless optional; items match the
    first."""
    if isinstance(example, Example):
        return example.schema
    if isinstance(example, dict):
        optional = {name for name, each in example.items() if getattr(each, "is_optional", False)}
        return {
            "type": "object",
            "properties": {name: make_schema(each) for name, each in example.items()},
            "required": [name for name in example if name not in optional],
        }
    if isinstance(example, list):
        return {"type": "array", "items": make_schema(example[0])}
    return {"type": _TYPES[type(example)]}


def make_value(example: object) -> Any:
    """Return the plain JSON value of an example."""
    if isinstance(example, Example):
        return make_value(example.value)
    if isinstance(example, dict):
        return {name: make_value(each) for name, each in example.items()}
    return [make_value(each) for each in example] if isinstance(example, list) else example


def make_named(name: str, example: object) -> Example:
    """Add the schema to the document's components, and refer to it by name."""
    SCHEMAS[name] = make_schema(example)
    return Example(example, {"$ref": f"#/components/schemas/{name}"})


def make_const(value: object) -> Example:
    return Example(value, {"const": value})


def make_one_of(value: str, *others: str, **keywords: str) -> Example:
    return Example(value, {"type": "string", "enum": [value, *others], **keywords})


def make_or_null(example: object) -> Example:
    return Example(example, make_nullable(make_schema(example)))


def make_null_or(example: object) -> Example:
    """Like `make_or_null`, but the example shows null."""
    return Example(None, make_nullable(make_schema(example)))


def make_optional(example: object) -> Example:
    return Example(example, make_schema(example), is_optional=True)


def make_any_object(**example: object) -> Example:
    return Example(example, {"type": "object"})


def make_page(row: object) -> dict[str, object]:
    """Return one page of a list of such rows."""
    ends = make_or_null(make_value(row)["id"])
    return {
        "object": make_const("list"),
        "data": [row],
        "first_id": ends,
        "last_id": ends,
        "has_more": False,
    }
