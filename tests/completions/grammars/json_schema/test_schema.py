import json
from dataclasses import replace
from typing import Any

import pytest

from completions.grammars import Constraint, json_schema, translate
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.schema import prepare
from completions.grammars.limits import DEFAULT_LIMITS
from tests.completions.grammars.byte_matcher import accepts

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def chain(links: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(links)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{links}": {"type": "string"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize("as_text", [False, True])
def test_compact_instances(as_text: bool) -> None:
    grammar = json_schema.translate(json.dumps(PERSON) if as_text else PERSON).grammar
    assert accepts(grammar, '{"name":"Ada","age":36}')
    for wrong in ('{"name": "Ada","age":36}', '{"name":"Ada","age":-1}', '{"name":"Ada"}', "[]"):
        assert not accepts(grammar, wrong)


ONE = {"$ref": "#/$defs/one", "$defs": {"one": {"enum": ["x"]}, "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize("items", [{"const": 1}, {"type": "null"}, ONE])
def test_too_many_items_of_one_value_are_refused_at_their_place(items: dict[str, Any]) -> None:
    array = {"type": "array", "minItems": 5000, "items": items}
    schema = {"properties": {"a": array}, "$defs": items.get("$defs", {})}
    with pytest.raises(GrammarError, match="minItems is 5000; where items has one value") as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == "/properties/a/minItems"
    assert caught.value.diagnostics[0].keyword == "minItems"
    json_schema.translate(schema, whitespace="flexible")  # where spaces may follow each item
    for changed in (
        {"minItems": 2100},
        {"items": {"enum": [1, 2]}},
        {"type": "string"},
        {"items": {}},
        {"items": False},
        {"items": {"$ref": "#/$defs/loop"}, "$defs": ONE["$defs"]},
    ):
        prepare({**array, "$defs": ONE["$defs"], **changed})


def test_any_value() -> None:
    grammar = json_schema.translate({}).grammar
    assert all(accepts(grammar, text) for text in ("1", '"x"', "[1,{}]", "null"))


def test_response_format() -> None:
    value = {"type": "json_object", "json_schema": None}
    grammar = translate(Constraint("response_format", value)).grammar
    assert accepts(grammar, '{"a":[1]}')
    assert not accepts(grammar, "[1]")
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    assert translate(Constraint("response_format", wanted)) == json_schema.translate(PERSON)


def test_cyclic_references() -> None:
    schema = {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    }
    assert accepts(json_schema.translate(schema).grammar, "[[],[[]]]")


def combined_with_itself() -> dict[str, Any]:
    """A schema like that of JSON-LD, with draft 4's `id` at the root."""
    node = {"$ref": "#/definitions/node"}
    several = {"anyOf": [{"type": "array", "items": node}, node]}
    other = {"additionalProperties": several, "properties": {"@id": {"type": "string"}}}
    return {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "https://example.com/node.json",
        "allOf": [node, {"$ref": "#/definitions/other"}],
        "definitions": {
            "node": {"properties": {"@graph": several, "@list": several}},
            "other": other,
        },
    }


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {}}, "not allows no value; change it"),
        ({"uniqueItems": True}, "uniqueItems cannot be enforced here"),
        ({"type": "text"}, "unknown type text"),
        ({"pattern": "(?=a", "type": "string"}, r'invalid pattern "\(\?=a": this \( is not closed'),
        ({"pattern": "a$b", "type": "string"}, "pattern and type cannot all hold"),
        ({"$ref": "#/nowhere"}, "leads nowhere"),
        ({"enum": [1], "$ref": "#/enum/" + "1" * 5000}, "leads nowhere"),
        ({"enum": [{}], "$ref": "#/enum/\N{ARABIC-INDIC DIGIT ZERO}"}, "leads nowhere"),
        ({"$ref": "https://example.com/s"}, "only lead into the schema itself"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"maximum": float("inf")}, "a number is too large"),
        ({"const": "x" * 300_000}, "longer than 262144 bytes"),
        (nested(64), "nested deeper than 64"),
        (chain(900), "more than 500 levels"),
        ("[]", "must hold a JSON object, not \\[]"),
        ("{", "does not hold JSON"),
        ('{"type":"string","type":"null"}', "appears twice"),
        (
            {"allOf": [{"const": "a"}, {"const": "b"}]},
            "the schemas of allOf contradict each other; change one of them",
        ),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value can match: minimum"),
        (combined_with_itself(), "combine schemas that lead back to themselves"),
        (
            {"allOf": [{"pattern": f".*{c}.{{8}}x", "type": "string"} for c in "abcdefgh"]},
            "too complex; simplify its patterns",
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(
    schema: Any, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        json_schema.translate(schema)


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        (
            {"items": {"$ref": "#/$defs/a b"}, "$defs": {"a b": {"type": "null"}}},
            "/items/$ref",
            r"this \$ref is not a URI; percent-encode spaces",
        ),
        (
            {
                "type": "object",
                "allOf": [
                    {"anyOf": [{"required": [f"{letter}{i}"]} for letter in "ab"]}
                    for i in range(12)
                ],
            },
            "/allOf",
            "combine to too many alternatives; list the combinations",
        ),
        ({"enum": []}, "/enum", "enum is empty; list at least one"),
        ({"oneOf": []}, "/oneOf", "oneOf is empty; list at least one"),
        ({"type": "string", "enum": [1, 2]}, "", "type and enum cannot all hold"),
        ({"const": 1, "enum": [2]}, "", "const and enum cannot all hold"),
        (
            {"type": "string", "minLength": 5, "maxLength": 3},
            "",
            r"minLength \(5\) is greater than maxLength \(3\); change one of them",
        ),
        (
            {"type": "string", "format": "date", "pattern": "^x"},
            "",
            "format and pattern cannot all hold",
        ),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "/oneOf", "oneOf allows no value"),
        (
            {"type": "object", "required": ["a"], "additionalProperties": False},
            "/required",
            "a is required, but no value is allowed for it; declare it in properties",
        ),
        (
            {"items": {"type": "object", "patternProperties": {"a/(": {}}}},
            "/items/patternProperties/a~1(",
            r'invalid pattern "a/\(": this \( is not closed',
        ),
    ],
)
def test_a_fault_names_the_keywords_that_have_it(
    schema: dict[str, Any], pointer: str, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == pointer


def test_a_fault_behind_a_reference_is_found_in_a_large_schema() -> None:
    many = {f"p{i}": {"type": "string"} for i in range(150)}
    schema = {
        "type": "object",
        "properties": {"first": {"$ref": "#/$defs/a%20b"}, **many},
        "$defs": {"a b": {"type": "string", "pattern": "a$b"}},
    }
    with pytest.raises(GrammarError, match="type and pattern cannot all hold") as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == "/$defs/a b"


@pytest.mark.parametrize("names", [("^a{20}$", "^b$"), ("^b$", "^a{20}$")])
def test_each_name_of_pattern_properties_is_bounded(names: tuple[str, str]) -> None:
    schema = {"type": "object", "patternProperties": {name: {"type": "null"} for name in names}}
    with pytest.raises(GrammarError, match="repetitions multiply") as caught:
        prepare(schema, limits=replace(DEFAULT_LIMITS, max_repetition=10))
    assert caught.value.pointer == "/patternProperties/^a{20}$"


def test_a_negated_length_may_be_larger_than_a_length_beside_a_pattern() -> None:
    schema = {"type": "string", "pattern": "^[a-z]*$", "not": {"maxLength": 100_000}}
    assert not prepare(schema).warnings


def test_bad_json_text_has_a_place() -> None:
    with pytest.raises(GrammarError) as caught:
        json_schema.translate('{\n "type" "string"}')
    assert (caught.value.line, caught.value.column) == (2, 9)


def test_constraints_within_the_caps_are_accepted() -> None:
    assert json_schema.translate(chain(400))
    assert json_schema.translate(nested(63))


def test_a_part_keeps_what_looks_like_a_reference_in_a_value() -> None:
    value = {"$ref": "#/$defs/d"}
    properties = {"x": {"$ref": "#/$defs/d"}, "enum": {"enum": [value]}}
    inner = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    schema = {"properties": {"a": inner}, "$defs": {"d": {"type": "boolean"}}}
    checked = prepare(schema)
    part = checked.make_part(checked.survey.nodes["/properties/a"], ["object"])
    grammar = json.dumps({"grammars": [{"json_schema": part}]})
    assert accepts(grammar, '{"x":true,"enum":{"$ref":"#/$defs/d"}}')
    assert not accepts(grammar, '{"x":1}')
