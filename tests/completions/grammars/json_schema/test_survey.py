"""Every keyword that would not be enforced is named with its place."""

import json
from decimal import Decimal
from typing import Any

import jsonschema
import jsonschema_specifications
import pytest

from completions.grammars import json_schema
from completions.grammars.exceptions import GrammarError
from completions.grammars.schema.keywords import ANNOTATIONS, ENFORCED, KEYWORDS
from tests.completions.grammars.byte_matcher import accepts

META_SCHEMAS = {
    name: getattr(jsonschema, f"Draft{name}Validator").META_SCHEMA
    for name in ("3", "4", "6", "7", "201909", "202012")
}

# A value of each unsupported keyword that would have an effect.
EFFECTIVE: dict[str, Any] = {
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
    "nullable": True,
    "divisibleBy": 2,
    "extends": {},
    "disallow": "string",
    "x-guidance": {"lenient": True},
}


def findings(schema: dict[str, Any]) -> set[tuple[str, str]]:
    """Keyword and pointer of all that is refused or ignored."""
    try:
        found = json_schema.translate(schema).warnings
    except GrammarError as error:
        found = error.diagnostics
    return {(finding.keyword, finding.pointer) for finding in found}


@pytest.mark.parametrize("keyword", sorted(KEYWORDS.keys() - ENFORCED))
def test_unsupported_keywords_are_named_with_their_pointer(keyword: str) -> None:
    inner = {keyword: EFFECTIVE[keyword]}
    for schema, pointer in (
        (inner, ""),
        ({"type": "object", "properties": {"a/b": inner}}, "/properties/a~1b"),
        ({"type": "array", "items": {"anyOf": [{"type": "null"}, inner]}}, "/items/anyOf/1"),
        ({"$ref": "#/$defs/x", "$defs": {"x": inner}}, "/$defs/x"),
    ):
        with pytest.raises(GrammarError) as caught:
            json_schema.translate(schema)
        assert (keyword, f"{pointer}/{keyword}") in findings(schema)
        assert caught.value.pointer is not None
        assert caught.value.pointer.startswith(pointer)
        assert caught.value.pointer in {place for _, place in findings(schema)}


@pytest.mark.parametrize("draft", sorted(META_SCHEMAS))
def test_no_keyword_of_any_draft_is_unknown(draft: str) -> None:
    """What is known is enforced, refused by name, or says nothing about the output."""
    schemas = [META_SCHEMAS[draft], *META_SCHEMAS[draft].get("allOf", ())]
    base = META_SCHEMAS[draft].get("$id", META_SCHEMAS[draft].get("id"))
    resolver = jsonschema_specifications.REGISTRY.resolver(base_uri=base)
    names: set[str] = set()
    for schema in schemas:
        if "$ref" in schema:
            schema = resolver.lookup(schema["$ref"]).contents
        names |= schema.get("properties", {}).keys()
    assert len(names) > 20
    known = {*KEYWORDS, *ANNOTATIONS, "$dynamicAnchor", "$recursiveAnchor"}
    assert names - known == set()


def test_all_keywords_that_are_not_enforced_are_listed() -> None:
    schema = {
        "properties": {"a": {"unevaluatedItems": False, "x-order": 1}, "b": {"extends": {}}},
        "maxlength": 3,
    }
    assert findings(schema) == {
        ("maxlength", "/maxlength"),
        ("unevaluatedItems", "/properties/a/unevaluatedItems"),
        ("x-order", "/properties/a/x-order"),
        ("extends", "/properties/b/extends"),
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": False},
        {"if": {"type": "string"}},
        {"then": {}},
        {"minContains": 3},
        {"propertyNames": True},
        {"propertyNames": {}},
        {"dependentRequired": {}},
        {"unevaluatedProperties": {}},
        {"nullable": False},
        {"$dynamicAnchor": "a"},
        {"minProperties": 0},
        {"allOf": []},
        {"$id": "http://[", "$schema": "http://json-schema.org/draft-07/schema#"},
        {"$defs": {"unused": {"not": {}}}},
        {"properties": {"not": {"type": "null"}}},
        {"enum": [{"not": 1}]},
        {"minLength": 2.0},
    ],
)
def test_keywords_without_effect_are_no_reason_to_refuse(schema: dict[str, Any]) -> None:
    assert json_schema.translate(schema).warnings == []


def test_annotations_are_harmless() -> None:
    values: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema = {name: values.get(name, "x") for name in ANNOTATIONS - {"$defs", "definitions"}}
    translated = json_schema.translate({"properties": {"a": {"type": "null"}}, **schema})
    assert translated.warnings == []


def test_unknown_keywords_are_annotations_but_misspelt_ones_are_not() -> None:
    assert findings({"x-order": 3, "colour": "red"}) == {
        ("x-order", "/x-order"),
        ("colour", "/colour"),
    }
    for name in ("maxlength", "additional_properties", "MinItems", "one-of", "minLenght", "patern"):
        with pytest.raises(GrammarError, match=f"unknown keyword {name}; did you mean"):
            json_schema.translate({name: 1})
    for name in ("@type", "type:"):
        with pytest.raises(GrammarError, match=f'"{name}"; write type, or x-type for an annot'):
            json_schema.translate({name: 1})


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        ({"items": {"minLength": -1}}, "/items/minLength", "non-negative integer"),
        ({"properties": {"a": {"required": True}}}, "/properties/a/required", "array of strings"),
        ({"properties": {"a": 3}}, "/properties", 'an object of schemas, not {"a": 3}'),
        ({"anyOf": {}}, "/anyOf", "array of schemas"),
        ({"type": ["string", "text"]}, "/type", "unknown type text"),
        ({"type": {}}, "/type", "not {}; use array"),
        ({"minLength": 10**12}, "/minLength", "is 1000000000000; it may be at most"),
        (
            {"items": {"pattern": "^a*$", "minLength": 10**6}},
            "/items/minLength",
            "minLength is 1000000; beside a pattern it may be at most 100000",
        ),
        ({"nullable": True}, "/nullable", 'add "null" to type'),
        (
            {"not": {"type": "object", "propertyNames": {"pattern": "^a"}}},
            "/not/propertyNames",
            "list the allowed names in properties",
        ),
        (
            {
                "properties": {"x": {"$ref": "#/definitions/a"}},
                "definitions": {
                    "a": {
                        "$schema": "http://json-schema.org/draft-04/schema",
                        "id": "schema/a",
                        "items": {"$ref": "#/definitions/a/definitions/b"},
                        "definitions": {"b": {}},
                    }
                },
            },
            "/definitions/a/id",
            "leave the id out",
        ),
        ({"enum": "abc"}, "/enum", "an array"),
        ({"items": {"$ref": "#/$defs/nowhere"}}, "/items/$ref", "leads nowhere"),
        ({"items": {"$ref": "item.json"}}, "/items/$ref", "only lead into the schema itself"),
        ({"items": {"$id": "item", "$ref": "#"}}, "/items/$id", "only supported at the root"),
        ({"items": {"pattern": "(?=a", "type": "string"}}, "/items/pattern", "is not closed"),
        (
            {"items": {"oneOf": [{"type": "number"}, {"type": "integer"}]}},
            "/items/oneOf",
            "use type integer alone",
        ),
        ({"items": {"minProperties": 2}}, "/items/minProperties", "declare them in properties"),
        (
            {"items": {"properties": {f"p{i}": {} for i in range(20)}, "maxProperties": 4}},
            "/items/maxProperties",
            "fewer optional properties",
        ),
        ({"items": {"uniqueItems": True}}, "/items/uniqueItems", "an enum of up to 5"),
        (
            {"properties": {"x": {"$ref": "#", "required": ["y"]}}},
            "/properties/x/$ref",
            "cannot be combined with other keywords",
        ),
        ({"allOf": [{}, {"contains": {"const": 1}}]}, "/allOf/1/contains", "maxItems of at most"),
        (
            {
                "type": "array",
                "items": {"allOf": [{"type": "string"}, {"type": "null"}]},
                "minItems": 1,
            },
            "/items/allOf",
            "no value can match",
        ),
        ({"anyOf": [{"pattern": "x{1000}{1000}"}]}, "/anyOf/0/pattern", "multiply to more than"),
        ({"enum": list(range(20_001))}, "/enum", "more than 20000"),
        ({"properties": {f"p{i}": {} for i in range(1001)}}, "/properties", "more than 1000"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"uniqueItems": True}}}},
            "/$defs/a/items/uniqueItems",
            "an enum",
        ),
        (
            {"items": {"not": {}}, "minItems": 1, "type": "array"},
            "/items/not",
            "not allows no value",
        ),
    ],
)
def test_faults_have_a_pointer(schema: dict[str, Any], pointer: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("minimum", ["x", True, None])
def test_a_wrong_bound_beside_a_format_is_refused(minimum: object) -> None:
    with pytest.raises(GrammarError, match="minimum must be a number") as caught:
        json_schema.translate({"type": "integer", "format": "int8", "minimum": minimum})
    assert caught.value.pointer == "/minimum"


def test_chains_of_references_by_anchor_are_bounded() -> None:
    """llguidance recurses along them, and would end the process."""
    definitions = {f"d{i}": {"$anchor": f"a{i}", "$ref": f"#a{i + 1}"} for i in range(3000)}
    definitions["d3000"] = {"$anchor": "a3000", "type": "null"}
    with pytest.raises(GrammarError, match="more than 500 levels"):
        json_schema.translate({"$ref": "#a0", "$defs": definitions})


def test_references_by_pointer_and_by_anchor() -> None:
    definitions = {"a%b/c": {"type": "null"}, "d": {"$anchor": "named", "type": "boolean"}}
    for reference, text in (("#/$defs/a%25b~1c", "null"), ("#named", "true")):
        schema = {"$ref": reference, "$defs": definitions}
        assert accepts(json_schema.translate(schema).grammar, text)


@pytest.mark.parametrize("keyword", ["const", "enum", "default", "examples"])
def test_an_anchor_inside_a_value_is_data(keyword: str) -> None:
    value = {"$anchor": "x", "type": "string"}
    holder = {keyword: [value] if keyword in ("enum", "examples") else value}
    schema = {
        "prefixItems": [holder, {"$ref": "#x"}],
        "minItems": 2,
        "items": False,
        "$defs": {"d": {"$anchor": "x", "type": "integer", "not": {"const": 1}}},
    }
    grammar = json_schema.translate(schema).grammar
    first = json.dumps(value, separators=(",", ":"))
    assert accepts(grammar, f"[{first},2]")
    assert not accepts(grammar, f"[{first},1]")
    del schema["$defs"]
    with pytest.raises(GrammarError, match=r"\$ref leads nowhere: #x") as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == "/prefixItems/1/$ref"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"const": {"$anchor": "x", "type": "null"}}},
        {"definitions": {"enum": {"$anchor": "x", "type": "null"}}},
        {"contentSchema": {"$anchor": "x", "type": "null"}},
        {"allOf": [{"$defs": {"a": {"$anchor": "x", "type": "null"}}}]},
    ],
)
def test_anchors_are_found_in_all_schemas(schema: dict[str, Any]) -> None:
    whole = {"type": "array", "prefixItems": [{"$ref": "#x"}], **schema}
    grammar = json_schema.translate(whole).grammar
    assert accepts(grammar, "[null]")
    assert not accepts(grammar, "[1]")


def test_formats_of_integers_are_their_ranges() -> None:
    grammar = json_schema.translate({"type": "integer", "format": "int8", "minimum": -5}).grammar
    assert all(accepts(grammar, text) for text in ("-5", "127"))
    assert not any(accepts(grammar, text) for text in ("-6", "128"))
    assert findings({"type": "number", "format": "double"}) == set()
    assert findings({"type": "number", "format": "money"}) == {("format", "/format")}


def test_escapes_do_not_slip_past_declared_names() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"a":1,"b":2}')
    assert not accepts(grammar, r'{"\u0061":2}')
    for more in (
        {"description": "two\nlines"},
        {"default": "\x01"},
        {"not": {"required": ["\n"]}},
        {"patternProperties": {"^[\\u4e00-\\u9fa5]+$": {"enum": ["a\tb", "\\u0041"]}}},
    ):
        grammar = json_schema.translate(schema | more).grammar
        assert accepts(grammar, '{"a":1,"b":2}')
        assert not accepts(grammar, r'{"\u0061":2}')
    counted = json_schema.translate({"type": "object", "required": ["a"], "minProperties": 2})
    assert not accepts(counted.grammar, r'{"a":1,"\u0061":1}')
    control = json_schema.translate({"type": "object", "properties": {"a": {"const": "\x01"}}})
    assert accepts(control.grammar, r'{"a":"\u0001"}')


@pytest.mark.represented_by("65536", "1e-08", "1000000.0", "12.5")
@pytest.mark.parametrize("multiple", [99_991, 65_536, 0.00000001, 1e6, 12.5])
def test_multiples_that_can_be_followed(multiple: float) -> None:
    assert not findings({"type": "number", "multipleOf": multiple})


@pytest.mark.parametrize("multiple", [100_003, 99_999_989, 5 * 2**20, 12345678.9, 10**30 + 1])
def test_multiples_of_too_many_remainders_are_refused(multiple: float) -> None:
    """llguidance would compute for minutes, in memory without bound."""
    schema = {"items": {"type": "number", "multipleOf": multiple}}
    with pytest.raises(GrammarError, match="at most 100000, trailing zeros not") as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == "/items/multipleOf"


def test_integers_of_64_bits() -> None:
    """All but the lowest, which llguidance cannot count to."""
    grammar = json_schema.translate({"type": "integer", "format": "int64"}).grammar
    for inside in (0, -(10**18), 10**18, 2**63 - 1, -(2**63) + 1024):
        assert accepts(grammar, str(inside))
    for outside in (2**63, -(2**63) - 1):
        assert not accepts(grammar, str(outside))


@pytest.mark.parametrize(
    "bound",
    [
        {"minimum": 10**18},
        {"minimum": -(2**63)},
        {"minimum": -(10**30)},
        {"maximum": -(10**18)},
        {"exclusiveMinimum": 10**18},
        {"exclusiveMaximum": -(2**63)},
        {"minimum": -(10**19), "maximum": 5},
    ],
)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_out_of_reach_say_what_to_do(kind: str, bound: dict[str, int]) -> None:
    keyword = next(iter(bound))
    with pytest.raises(GrammarError) as caught:
        json_schema.translate({"items": {"type": kind, **bound}})
    assert caught.value.message == (
        f"{keyword} is {bound[keyword]}, out of reach: give one between -10^17 and 10^17, or "
        "leave it out"
    )
    assert caught.value.pointer == f"/items/{keyword}"


@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"])
def test_no_bound_is_rounded(keyword: str) -> None:
    """llguidance would take 9007199254740993 for ...92, and let the latter pass."""
    with pytest.raises(GrammarError, match="give a rounder one") as caught:
        json_schema.translate({"items": {"type": "integer", keyword: 2**53 + 1}})
    assert caught.value.pointer == f"/items/{keyword}"
    for exact in (2**53, 2**53 + 2, 123456.789, 10**17, float(2**53 + 2)):
        assert not findings({"type": "number", keyword: exact})


@pytest.mark.parametrize("value", [2**53, -(2**53), 10**18, 0.1, 1e-7, 2.5e17])
@pytest.mark.parametrize("more", [{}, {"type": ["integer", "number"]}])
def test_constants_are_written_exactly(value: float, more: dict[str, Any]) -> None:
    grammar = json_schema.translate({"const": value, **more}).grammar
    assert accepts(grammar, f"{Decimal(str(value)):f}")


@pytest.mark.parametrize(
    ("schema", "pointer", "message"),
    [
        ({"items": {"multipleOf": 0}}, "/items/multipleOf", "must be greater than 0"),
        ({"items": {"pattern": "a(?!b{400})"}}, "/items/pattern", "look-ahead"),
        ({"properties": {"a": {"pattern": r"(x)\1"}}}, "/properties/a/pattern", "not supported"),
        ({"enum": [1, {"a": [2**53 + 1]}]}, "/enum", "9007199254740993 is too large"),
        ({"items": {"const": 12345678901234567890}}, "/items/const", "as a string"),
        ({"type": "integer", "const": 10**30}, "/const", "too large to be written exactly"),
        ({"const": 2**60}, "/const", "too large to be written exactly"),
    ],
)
def test_values_that_cannot_be_followed(schema: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == pointer
