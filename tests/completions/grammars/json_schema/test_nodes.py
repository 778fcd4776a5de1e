from typing import Any

import pytest

from completions.grammars.json_schema.nodes import (
    iter_parts,
    list_types,
    list_value_types,
    list_values,
)


def test_parts_are_what_enforced_keywords_hold() -> None:
    schema = {
        "properties": {"a/b": {}, "c": True},
        "items": [{}, False],
        "not": {},
        "dependencies": {"a": ["b"]},
        "enum": [{"not": {}}],
        "$defs": {"d": {}},
        "anyOf": 3,
    }
    assert [pointer for pointer, _ in iter_parts(schema, "/x")] == [
        "/x/properties/a~1b",
        "/x/properties/c",
        "/x/items/0",
        "/x/items/1",
        "/x/not",
        "/x/dependencies/a",
        "/x/anyOf",
    ]


@pytest.mark.parametrize(
    ("schema", "types", "values"),
    [
        ({}, [], None),
        ({"type": "null"}, ["null"], None),
        ({"type": ["string", 3], "enum": [1]}, ["string"], [1]),
        ({"type": 3, "enum": 3}, [], None),
        ({"const": None, "enum": [1, 2]}, [], [None]),
    ],
)
def test_types_and_values(
    schema: dict[str, Any], types: list[str], values: list[Any] | None
) -> None:
    assert list_types(schema) == types
    assert list_values(schema) == values


@pytest.mark.parametrize(
    ("value", "types"),
    [
        (True, {"boolean"}),
        (1, {"number", "integer"}),
        (1.0, {"number", "integer"}),
        (1.5, {"number"}),
        (float("inf"), {"number"}),
        (None, {"null"}),
        ([], {"array"}),
        ({}, {"object"}),
        ("", {"string"}),
    ],
)
def test_types_of_values(value: Any, types: set[str]) -> None:
    assert list_value_types(value) == types
