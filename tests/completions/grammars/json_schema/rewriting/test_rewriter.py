"""What a rewriting changes, what it leaves alone, and how it refuses."""

import copy
import json
from typing import Any

import pytest

from completions.grammars import json_schema
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.rewriting import unknown
from tests.completions.grammars.byte_matcher import accepts
from tests.operations import counted_operations

PLAIN = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"anyOf": [{"type": "null"}, {"minimum": 1}]}},
    "$defs": {"x": {"type": "array", "items": {"$ref": "#"}}},
}


def compiled(schema: dict[str, Any]) -> dict[str, Any]:
    found = dict(json_schema.prepare(schema).compiled)
    del found["x-guidance"]
    return found


def test_what_llguidance_holds_stays_as_it_is() -> None:
    assert compiled(copy.deepcopy(PLAIN)) == PLAIN


def test_branches_that_exclude_each_other_become_an_any_of() -> None:
    branches = [
        {"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in "ab"
    ]
    assert compiled({"oneOf": branches}) == {"anyOf": branches}
    beside = {"anyOf": [{"minLength": 1}, {"type": "null"}]}
    both = compiled({"oneOf": [{"type": "string"}, {"type": "null"}], **beside})
    assert both == {**beside, "allOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}]}


def test_properties_keep_their_order() -> None:
    names = ["z", "a", "m"]
    schema = {"properties": {name: {} for name in names}, "not": {"required": ["a"]}}
    assert list(compiled({"type": "object", **schema})["properties"]) == names


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"items": {"allOf": [{}, {"contains": {"const": 1}}]}}, "/items/allOf/1/contains"),
        ({"properties": {"a/b": {"uniqueItems": True}}}, "/properties/a~1b/uniqueItems"),
        ({"not": {"properties": {"a": {"items": {"const": 1}}}}}, "/not"),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "minProperties": 3}}},
            "/$defs/x/minProperties",
        ),
    ],
)
def test_refusals_name_the_place(schema: dict[str, Any], pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == pointer
    assert "cannot be enforced here: " in caught.value.message


def test_faults_that_llguidance_finds_have_the_clients_pointer() -> None:
    """`oneOf` is an `anyOf` by then, and `not` is gone."""
    many = [{"pattern": f".*{letter}.{{8}}x", "type": "string"} for letter in "abcdefgh"]
    with pytest.raises(GrammarError) as caught:
        json_schema.translate({"oneOf": [{"type": "null"}, {"allOf": many}]})
    assert caught.value.pointer == "/oneOf/1"


def test_references_into_what_was_rewritten() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    }
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"b":1}')
    assert not accepts(grammar, '{"b":"x"}')
    assert not accepts(grammar, '{"a":1,"b":1}')


def test_what_looks_like_a_reference_in_a_value_stays_as_it_is() -> None:
    value = {"$ref": "#/properties/a"}
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"$ref": "#/properties/a"},
            "const": {"const": value},
            "enum": {"items": {"enum": [value, [value]]}},
        },
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    }
    grammar = json_schema.translate(schema).grammar
    reference = json.dumps(value, separators=(",", ":"))
    assert accepts(grammar, f'{{"b":1,"const":{reference}}}')
    assert accepts(grammar, f'{{"b":1,"enum":[{reference},[{reference}]]}}')
    assert not accepts(grammar, '{"b":"x"}')


def test_negations_of_recursive_schemas() -> None:
    """No tree of booleans: somewhere is another leaf."""
    leaf = {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/tree"}]}
    tree = {
        "type": "object",
        "properties": {"l": leaf},
        "required": ["l"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "not": {"$ref": "#/$defs/tree"},
        "additionalProperties": True,
        "propertyNames": {"const": "l"},
        "$defs": {"tree": tree},
    }
    grammar = json_schema.translate(schema).grammar
    assert all(accepts(grammar, text) for text in ("{}", '{"l":"x"}', '{"l":{"l":null}}'))
    assert not any(accepts(grammar, text) for text in ('{"l":true}', '{"l":{"l":false}}'))


def test_each_schema_made_has_a_definition_of_its_own() -> None:
    """The negations of two definitions that refer to each other."""

    def tree(leaf: str, left: str, right: str) -> dict[str, Any]:
        sides = {"x": {"$ref": f"#/$defs/{left}"}, "y": {"$ref": f"#/$defs/{right}"}}
        return {
            "type": ["object", leaf],
            "properties": sides,
            "required": ["x", "y"],
            "additionalProperties": False,
        }

    trees = {"a": tree("boolean", "b", "a"), "b": tree("null", "a", "b")}
    any_tree = {**tree("null", "any", "any"), "type": ["object", "boolean", "null"]}
    schema = {
        "not": {"$ref": "#/$defs/a"},
        "$ref": "#/$defs/any",
        "$defs": {**trees, "any": any_tree},
    }
    grammar = json_schema.translate(schema).grammar
    for instance in ("null", '{"x":true,"y":true}', '{"x":null,"y":{"x":true,"y":true}}'):
        assert accepts(grammar, instance), instance
    for wrong in (
        "true",
        '{"x":null,"y":true}',
        '{"x":null,"y":{"x":null,"y":true}}',
        '{"x":{"x":true,"y":null},"y":true}',
    ):
        assert not accepts(grammar, wrong), wrong


def test_the_clients_definitions_keep_their_names() -> None:
    places = {"y": {"$ref": "#/$defs/moved-0"}, "x": {"$ref": "#/oneOf/0"}}
    schema = {
        "oneOf": [{"type": "string"}, {"type": "object", "properties": places}],
        "$defs": {"moved-0": {"type": "null"}},
    }
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"y":null,"x":"a"}')
    assert not accepts(grammar, '{"y":"a"}')


@pytest.mark.parametrize("definitions", [[{}], None, "a"])
def test_definitions_that_are_no_object_have_no_effect(definitions: Any) -> None:
    """Neither where a schema needs definitions of its own."""
    places = {"x": {"$ref": "#/oneOf/0"}}
    options = [{"type": "null"}, {"type": "object", "properties": places}]
    schema = {"$defs": definitions, "oneOf": options}
    translated = json_schema.translate(schema)
    assert accepts(translated.grammar, '{"x":null}')
    assert not accepts(translated.grammar, '{"x":1}')
    assert [each.keyword for each in translated.warnings] == ["$defs"]


HOSTILE: dict[str, dict[str, Any]] = {
    "patterns": {
        "type": "string",
        "oneOf": [
            {"pattern": f"^[a-z]{{1,{index}}}.*{letter}.{{8}}"}
            for index, letter in enumerate("abcdefgh", 5)
        ],
    },
    "branches": {
        "oneOf": [
            {"properties": {f"p{j}": {"maxLength": i + j} for j in range(12)}} for i in range(20)
        ]
    },
    "conditions": {
        "type": "object",
        "allOf": [
            {"if": {"properties": {f"k{i}": {"const": 1}}}, "then": {"required": [f"z{i}"]}}
            for i in range(12)
        ],
    },
    "literals": {"not": {"enum": [f"v{i}" for i in range(5000)]}},
    "contains": {
        "type": "array",
        "maxItems": 8,
        "allOf": [{"contains": {"const": i}} for i in range(8)],
    },
    "choices": {
        "type": "object",
        "properties": {f"p{i}": {} for i in range(900)},
        "minProperties": 2,
        "additionalProperties": False,
    },
}


MOST_OPERATIONS = 8_000_000
"""A second or two. The costliest of these schemas takes 2.8 million lines of Python."""


@pytest.mark.represented_by("choices", "contains", "literals", "patterns")
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_what_is_too_large_is_refused_soon(name: str) -> None:
    with (
        counted_operations() as operations,
        pytest.raises(GrammarError, match="cannot be enforced here"),
    ):
        json_schema.translate(HOSTILE[name])
    assert operations.count < MOST_OPERATIONS


@pytest.mark.wide
def test_nested_unions_are_refused_soon() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for level in range(8):
        schema = {"oneOf": [schema, {"maxLength": level}, {"properties": {f"p{level}": schema}}]}
    with counted_operations() as operations, pytest.raises(GrammarError):
        json_schema.translate(schema)
    assert operations.count < MOST_OPERATIONS


def test_cycles_through_negations_end() -> None:
    schema = {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {
                "oneOf": [
                    {"not": {"$ref": "#/$defs/b"}},
                    {"properties": {"x": {"$ref": "#/$defs/a"}}},
                ]
            },
            "b": {"type": "object", "properties": {"y": {"not": {"$ref": "#/$defs/a"}}}},
        },
    }
    assert json.loads(json_schema.translate(schema).grammar)
    with pytest.raises(GrammarError, match="refers to itself"):
        json_schema.translate({"not": {"$ref": "#"}})


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("minLenght", "minLength"),
        ("patern", "pattern"),
        ("anyof", "anyOf"),
        ("type:", "type"),
        ("max-length", "maxLength"),
        ("requird", "required"),
        ("_format", ""),
        ("x-enum", ""),
        ("$id2", ""),
        ("readonly", ""),
        ("colour", ""),
        ("ui", ""),
        ("order", ""),
    ],
)
def test_typing_errors(keyword: str, meant: str) -> None:
    constraints = ("type", "enum", "if", "pattern", "required", "minLength", "maxLength", "anyOf")
    assert unknown.suggest(keyword, constraints) == meant


def test_an_empty_union_is_unsatisfiable() -> None:
    with pytest.raises(GrammarError, match="is empty"):
        json_schema.translate({"oneOf": []})


def test_properties_keep_their_order_where_another_one_is_required() -> None:
    names = ["f", "c", "a", "e", "b"]
    closed = {"properties": dict.fromkeys(names, True), "additionalProperties": False}
    grammar = json_schema.translate({"type": "object", "not": closed}).grammar
    options = json.loads(grammar)["grammars"][0]["json_schema"]["anyOf"]
    assert {tuple(option["properties"]) for option in options} == {tuple(names)}
