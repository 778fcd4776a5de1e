"""Schemas of every keyword that is rewritten, and instances, against another implementation."""

import json
from typing import Any

import jsonschema
from hypothesis import assume, given
from hypothesis import strategies as st

from completions.grammars import json_schema
from completions.grammars.exceptions import GrammarError
from tests.completions.grammars.byte_matcher import accepts

NAMES = ("a", "b", "ab")
TEXTS = ("", "a", "b", "ab", "ba", "abc")
NUMBERS = (-1, 0, 1, 2, 3, 2.5)
PATTERNS = ("^a", "b$", "^[ab]{1,2}$", "a", "^(a|bc)*$", "^.{2}$")
scalars = st.sampled_from([None, True, False, *NUMBERS, *TEXTS])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)
counts = st.integers(0, 3)
names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
    | st.lists(
        st.sampled_from(["object", "array", "string", "integer", "null"]),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    "const": values,
    "enum": st.lists(values, min_size=1, max_size=3),
    "minimum": st.sampled_from(NUMBERS),
    "maximum": st.sampled_from(NUMBERS),
    "exclusiveMinimum": st.sampled_from(NUMBERS),
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": counts,
    "maxLength": counts,
    "pattern": st.sampled_from(PATTERNS),
    "minItems": counts,
    "maxItems": counts,
    "uniqueItems": st.just(True),
    "minProperties": counts,
    "maxProperties": counts,
    "required": names,
    "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
}


SCHEMA, LIST, MAP = "a schema", "a list of schemas", "a map of schemas"
NESTED = {
    "properties": MAP,
    "patternProperties": MAP,
    "additionalProperties": SCHEMA,
    "items": SCHEMA,
    "prefixItems": LIST,
    "not": SCHEMA,
    "allOf": LIST,
    "anyOf": LIST,
    "oneOf": LIST,
    "if": SCHEMA,
    "then": SCHEMA,
    "else": SCHEMA,
    "contains": SCHEMA,
    "propertyNames": SCHEMA,
    "dependentSchemas": MAP,
}


@st.composite
def schemas(draw: st.DrawFn, levels: int = 3) -> dict[str, Any]:
    known = (*LEAVES, *NESTED, *NESTED) if levels else tuple(LEAVES)
    keywords = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    if "if" in keywords:
        keywords.append("then")
    schema: dict[str, Any] = {}
    for keyword in keywords:
        if keyword in LEAVES:
            schema[keyword] = draw(LEAVES[keyword])
        elif NESTED[keyword] == SCHEMA:
            schema[keyword] = draw(schemas(levels - 1))
        elif NESTED[keyword] == LIST:
            schema[keyword] = draw(st.lists(schemas(levels - 1), min_size=1, max_size=3))
        else:
            keys = PATTERNS if keyword == "patternProperties" else NAMES
            inside = st.dictionaries(st.sampled_from(keys), schemas(levels - 1), max_size=2)
            schema[keyword] = draw(inside)
    return schema


@given(schemas(), st.lists(values, min_size=4, max_size=8))
def test_what_is_accepted_is_an_instance(schema: dict[str, Any], instances: list[Any]) -> None:
    try:
        grammar = json_schema.translate(schema).grammar
    except GrammarError:
        assume(False)
    validator = jsonschema.Draft202012Validator(schema)
    for value in instances:
        text = json.dumps(value, separators=(",", ":"))
        if accepts(grammar, text):
            assert validator.is_valid(value), text
        elif validator.is_valid(value):
            assert accepted_in_some_order(grammar, value), text


def accepted_in_some_order(grammar: str, value: Any) -> bool:
    return any(accepts(grammar, json.dumps(each, separators=(",", ":"))) for each in orders(value))


def orders(value: Any) -> list[Any]:
    """The value with the properties of its objects in every order."""
    if isinstance(value, list):
        lists: list[list[Any]] = [[]]
        for item in value:
            lists = [[*before, each] for before in lists for each in orders(item)]
        return lists
    if not isinstance(value, dict):
        return [value]
    found: list[dict[str, Any]] = [{}] if not value else []
    for name, inner in value.items():
        rest = {key: each for key, each in value.items() if key != name}
        found += [{name: first, **others} for first in orders(inner) for others in orders(rest)]
    return found
