"""A schema as typed nodes: what has a wrong shape says nothing."""

from typing import Any

import pytest

from completions.grammars.schema.nodes import Document, SchemaNode, list_value_types


def parse(schema: object) -> SchemaNode:
    return Document(schema).root


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
    assert [node.pointer for node in parse(schema).parts] == [
        "/properties/a~1b",
        "/items/0",
        "/not",
    ]


@pytest.mark.parametrize(
    ("schema", "types", "values"),
    [
        ({}, [], None),
        (True, [], None),
        (False, [], []),
        ("none", [], None),
        ({"type": "null"}, ["null"], None),
        ({"type": ["string", 3], "enum": [1]}, ["string"], [1]),
        ({"type": 3, "enum": 3}, [], None),
        ({"const": None, "enum": [1, 2]}, [], [None]),
    ],
)
def test_types_and_values(schema: object, types: list[str], values: list[Any] | None) -> None:
    node = parse(schema)
    assert (node.types, node.values) == (types, values)
    assert node.is_empty is (values == [])


@pytest.mark.parametrize(
    ("schema", "prefix", "rest"),
    [
        ({}, [], {}),
        ({"items": {"a": 1}}, [], {"a": 1}),
        ({"items": [{"a": 1}, True]}, [{"a": 1}, True], {}),
        ({"items": [{"a": 1}], "additionalItems": {"b": 1}}, [{"a": 1}], {"b": 1}),
        ({"items": [], "additionalItems": {"b": 1}, "prefixItems": [{}]}, [], {"b": 1}),
        ({"prefixItems": [{"a": 1}], "items": {"b": 1}}, [{"a": 1}], {"b": 1}),
        ({"prefixItems": {"a": 1}, "items": 3}, [], {}),
    ],
)
def test_both_spellings_of_tuples(schema: object, prefix: list[object], rest: object) -> None:
    node = parse(schema)
    assert [each.schema for each in node.prefix] == prefix
    assert node.rest.keywords == rest


def test_properties_and_other_keywords() -> None:
    node = parse({"properties": {"a~b": False, "c": 3}, "required": ["a~b"], "minLength": 2.0})
    assert {name: each.schema for name, each in node.properties.items()} == {
        "a~b": False,
        "c": True,
    }
    assert node.properties["a~b"].pointer == "/properties/a~0b"
    inner = node.get_property("a~b")
    assert inner is not None
    assert inner.is_empty
    assert node.get_property("d") is None
    assert (node.required, node.get("minLength"), node.get("maxLength", 7)) == (["a~b"], 2, 7)
    wrong = parse({"properties": [], "required": "ab", "minLength": -1, "pattern": 3})
    assert (wrong.properties, wrong.required, wrong.get("minLength"), wrong.get("pattern")) == (
        {}, [], None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "pointer"),
    [
        ("#", ""),
        ("#/$defs/a%25b~1c", "/$defs/a%b~1c"),
        ("#named", "/$defs/d"),
        ("#/$defs/e", "/$defs/e"),
        ("#other", None),
        ("#/nowhere", None),
        ("named", None),
        (3, None),
    ],
)
def test_references(reference: object, pointer: str | None) -> None:
    definitions = {
        "a%b/c": {},
        "d": {"$anchor": "named", "enum": [{"$anchor": "other"}]},
        "e": True,
    }
    target = parse({"$ref": reference, "$defs": definitions}).target
    assert (target and target.pointer) == pointer


def test_a_reference_leads_to_the_same_place_after_a_change() -> None:
    root: dict[str, Any] = {"$ref": "#/not", "not": {"type": "null"}}
    node = parse(root)
    target = node.target
    del root["not"]
    assert node.target is target is not None


def test_patterns_have_a_path() -> None:
    node = parse({"pattern": "a", "patternProperties": {"b/": {}}})
    assert list(node.iter_patterns()) == [("pattern", "a"), ("patternProperties/b~1", "b/")]


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
