"""The keywords of JSON Schema: one record for each that is enforced, or refused with advice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

SchemaObject = dict[str, Any]
"""The keywords of a schema, with their values."""
JSONSchema = SchemaObject | bool
Test = Callable[[object], bool]


def _is_any(*types: type) -> Test:
    return lambda value: isinstance(value, types)


def _are_all(test: Test) -> Test:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _have_all(test: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(map(test, value.values()))


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_is_schema = _is_any(dict, bool)
_are_schemas = _are_all(_is_schema)
_are_strings = _are_all(_is_any(str))


@dataclass(frozen=True, slots=True)
class Shape:
    """What the value of a keyword must be."""

    name: str
    fits: Test
    has_schemas: bool = False
    has_names: bool = False
    """Whether the schemas are the values of an object."""


ANY = Shape("", lambda value: True)
ARRAY = Shape("an array", _is_any(list))
FLAG = Shape("a boolean", _is_any(bool))
TEXT = Shape("a string", _is_any(str))
NUMBER = Shape("a number", is_number)
BOUND = Shape("a number or a boolean", _is_any(int, float))
COUNT = Shape(
    "a non-negative integer", lambda value: is_number(value) and value >= 0 and value % 1 == 0
)
STRINGS = Shape("an array of strings", _are_strings)
NAMED_STRINGS = Shape("an object of arrays of strings", _have_all(_are_strings))
SCHEMA = Shape("a schema", _is_schema, True)
SCHEMAS = Shape("an array of schemas", _are_schemas, True)
ITEMS = Shape(
    "a schema or an array of schemas", lambda value: _is_schema(value) or _are_schemas(value), True
)
NAMED_SCHEMAS = Shape("an object of schemas", _have_all(_is_schema), True, True)
DEPENDENCIES = Shape(
    "an object of schemas or arrays of strings",
    _have_all(lambda value: isinstance(value, dict | bool | str) or _are_strings(value)),
    True,
    True,
)

LATEST = 8
"""The number of draft 2019-09 and of all that follow."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """What is known of a keyword, besides its meaning."""

    shape: Shape = ANY
    is_rewritten: bool = False
    """Whether llguidance does not enforce it, so that a schema with it is written anew."""
    harmless: tuple[object, ...] = ()
    """Values with which it has no effect."""
    beside: tuple[str, ...] = ()
    """It has no effect unless one of these stands beside it."""
    since: int = 0
    """The first draft in which it has an effect."""
    instead: str = ""
    """What to send instead, if it is refused."""


KEYWORDS: Mapping[str, Keyword] = {
    "type": Keyword(),
    "enum": Keyword(ARRAY),
    "const": Keyword(),
    "$ref": Keyword(TEXT),
    "format": Keyword(TEXT),
    "pattern": Keyword(TEXT),
    "minLength": Keyword(COUNT),
    "maxLength": Keyword(COUNT),
    "minItems": Keyword(COUNT),
    "maxItems": Keyword(COUNT),
    "minProperties": Keyword(COUNT, harmless=(0,)),
    "maxProperties": Keyword(COUNT),
    "minimum": Keyword(NUMBER),
    "maximum": Keyword(NUMBER),
    "multipleOf": Keyword(NUMBER),
    "exclusiveMinimum": Keyword(BOUND),
    "exclusiveMaximum": Keyword(BOUND),
    "properties": Keyword(NAMED_SCHEMAS),
    "patternProperties": Keyword(NAMED_SCHEMAS),
    "required": Keyword(STRINGS),
    "additionalProperties": Keyword(SCHEMA),
    "additionalItems": Keyword(SCHEMA),
    "items": Keyword(ITEMS),
    "prefixItems": Keyword(SCHEMAS),
    "anyOf": Keyword(SCHEMAS),
    "allOf": Keyword(SCHEMAS, harmless=([],)),
    "oneOf": Keyword(SCHEMAS),
    "not": Keyword(SCHEMA, is_rewritten=True),
    "if": Keyword(SCHEMA, is_rewritten=True, since=7, beside=("then", "else")),
    "then": Keyword(SCHEMA, since=7, beside=("if",)),
    "else": Keyword(SCHEMA, since=7, beside=("if",)),
    "uniqueItems": Keyword(FLAG, is_rewritten=True, harmless=(False,)),
    "contains": Keyword(SCHEMA, is_rewritten=True, since=6),
    "minContains": Keyword(COUNT, since=LATEST, beside=("contains",)),
    "maxContains": Keyword(COUNT, since=LATEST, beside=("contains",)),
    "propertyNames": Keyword(SCHEMA, is_rewritten=True, since=6, harmless=(True, {})),
    "dependentRequired": Keyword(NAMED_STRINGS, is_rewritten=True, harmless=({},)),
    "dependentSchemas": Keyword(NAMED_SCHEMAS, is_rewritten=True, harmless=({},)),
    "dependencies": Keyword(DEPENDENCIES, is_rewritten=True, harmless=({},)),
    "$dynamicRef": Keyword(instead="refer by $ref"),
    "$recursiveRef": Keyword(instead="refer by $ref"),
    "disallow": Keyword(instead="send not"),
    "divisibleBy": Keyword(instead="send multipleOf"),
    "extends": Keyword(instead="send allOf"),
    "nullable": Keyword(instead='add "null" to type', harmless=(False,)),
    "unevaluatedItems": Keyword(
        instead="declare all items in one place, with items", harmless=(True, {})
    ),
    "unevaluatedProperties": Keyword(
        instead="declare all properties in one place, with additionalProperties",
        harmless=(True, {}),
    ),
    "x-guidance": Keyword(instead="leave it out"),
}
"""A further keyword gets its meaning in `json_schema/rewriting/`: what it and its negation accept
in `plain_keyword_readings`, or in `keyword_readings` if it holds schemas. Its row, with an example
that a test runs, is in docs/json-schema.md."""

ENFORCED = frozenset(name for name, keyword in KEYWORDS.items() if not keyword.instead)
REWRITTEN = frozenset(name for name, keyword in KEYWORDS.items() if keyword.is_rewritten)
ANNOTATIONS = frozenset(
    (
        "title", "description", "default", "examples", "example", "deprecated", "readOnly",
        "writeOnly", "$comment", "$schema", "$id", "id", "$anchor", "$vocabulary",
        "contentEncoding", "contentMediaType", "contentSchema", "$defs", "definitions",
        "discriminator", "externalDocs", "xml",
    )
)  # fmt: skip
TYPES = frozenset(["object", "array", "string", "number", "integer", "boolean", "null"])
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
