"""Converts an argument of a call that has no quotes around strings to JSON, by its schema."""

import operator
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from completions.chat.tools import dump
from completions.contract import strict_json
from completions.grammars.json_schema.keywords import ANNOTATIONS
from completions.grammars.json_schema.nodes import list_types, list_value_types, list_values
from completions.grammars.json_schema.pointers import resolve

Schema = Mapping[str, Any]

_MAX_DEPTH = 16
"""The deepest nesting of unions that is followed."""
_MAX_PARTS = 1000
"""How many parts of a schema are read for one argument, and how many values are compared with
parts. A schema may be large, and lead back to itself."""
_BOUNDS = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}
_CHECKED = {
    "type",
    "enum",
    "const",
    "minLength",
    "maxLength",
    "items",
    "minItems",
    "maxItems",
    "properties",
    "required",
    "additionalProperties",
    *_BOUNDS,
}
"""Keywords that are checked; with any other, it is undecided whether a value is an instance."""
_JOINING = ("$ref", "anyOf", "oneOf", "allOf")
_OTHER = "other"
"""Stands for all keywords that are not checked."""


class ArgumentTypes:
    """The types of a tool's arguments. Its schema is unchecked client input."""

    def __init__(self, schema: Schema) -> None:
        self._root = dict(schema)
        self._known: dict[str, list[Schema]] = {}
        self._left = 0

    def is_string(self, name: str) -> bool:
        """Return whether only strings are allowed, so that every text is one."""
        schemas = self._list_schemas(name)
        return bool(schemas) and all(_list_kinds(schema) == {"string"} for schema in schemas)

    def can_be_string(self, name: str) -> bool:
        """Return whether strings are allowed, or nothing is said of the argument."""
        schemas = self._list_schemas(name)
        kinds = [_list_kinds(schema) for schema in schemas]
        return not schemas or any(each is None or "string" in each for each in kinds)

    def to_json(self, name: str, text: str) -> str:
        """Return the JSON of an argument.

        A text that is valid JSON is read as a string only if the schema may allow this string and
        the value is not certainly an instance of the schema.
        """
        try:
            value = strict_json.loads(text)
        except strict_json.StrictJSONError:
            return dump(text)
        schemas = self._list_schemas(name)
        names_strings = any("string" in (_list_kinds(schema) or ()) for schema in schemas)
        may_be_text = names_strings and any(self._can_hold(text, schema) for schema in schemas)
        self._left = _MAX_PARTS
        if may_be_text and (isinstance(value, str) or not self._is_fit(value, schemas)):
            return dump(text)
        return text.strip()

    def _list_schemas(self, name: str) -> list[Schema]:
        """Return the alternatives of an argument's schema."""
        if name not in self._known:
            self._left = _MAX_PARTS
            roots = list(self._iter_alternatives(self._root))
            declared = [schema for root in roots for schema in _list_declared(root, name)]
            self._known[name] = [
                each for schema in declared for each in self._iter_alternatives(schema)
            ]
        return self._known[name]

    def _iter_alternatives(
        self,
        schema: Any,
        beside: Schema = MappingProxyType({}),
        seen: set[str] | None = None,
        depth: int = 0,
    ) -> Iterator[Schema]:
        """Yield the schemas that references and unions lead to, each with the keywords beside
        these. A reference is followed once on each way."""
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            return
        if depth > _MAX_DEPTH:
            yield {**beside, _OTHER: True}
            return
        seen = set(seen or ())
        merged, unions, waiting = dict(beside), list[list[Any]](), [schema]
        while waiting:
            part = waiting.pop()
            self._left -= 1
            if self._left < 0:
                merged[_OTHER] = True  # what was not read may exclude anything
                break
            if not isinstance(part, Mapping):
                continue
            waiting += self._join(part, seen)
            _merge(merged, part)
            unions += [part[key] for key in ("anyOf", "oneOf") if isinstance(part.get(key), list)]
        if not unions:
            yield merged
            return
        if unions[1:]:
            merged[_OTHER] = True
        for option in unions[0]:
            yield from self._iter_alternatives(option, merged, seen, depth + 1)

    def _join(self, part: Schema, seen: set[str]) -> list[Any]:
        """Return the schemas that a part leads to and that hold together with it."""
        joined, reference = _to_list(part.get("allOf")), part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            if target := resolve(self._root, reference):
                joined = [*joined, target[1]]
        return joined

    def _is_fit(self, value: Any, alternatives: Iterable[Schema]) -> bool:
        """Return whether a value is certainly an instance of one of the schemas."""
        for schema in alternatives:
            self._left -= 1
            if self._left < 0:
                return False
            try:
                if not schema.keys() - _CHECKED and self._is_valid(value, schema):
                    return True
            except (TypeError, RecursionError):  # such as a bound that is not a number
                continue
        return False

    def _can_hold(self, text: str, schema: Schema) -> bool:
        """Return whether a string may be an instance of the schema, as far as keywords are
        checked."""
        try:
            return self._is_valid(text, schema)
        except TypeError:  # such as a length that is not a number
            return True

    def _is_valid(self, value: Any, schema: Schema) -> bool:
        values = list_values(schema)
        # JSON's true is not 1.
        alike = (each for each in values or () if isinstance(each, bool) == isinstance(value, bool))
        if values is not None and value not in alike:
            return False
        kinds = _list_kinds(schema)
        if kinds is not None and kinds.isdisjoint(list_value_types(value)):
            return False
        if isinstance(value, str):
            length = len(value)
            return bool(schema.get("minLength", 0) <= length <= schema.get("maxLength", length))
        if isinstance(value, list):
            return self._are_items_valid(value, schema)
        if isinstance(value, dict):
            return self._are_properties_valid(value, schema)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return all(test(value, schema[name]) for name, test in _BOUNDS.items() if name in schema)

    def _are_items_valid(self, values: list[Any], schema: Schema) -> bool:
        if not schema.get("minItems", 0) <= len(values) <= schema.get("maxItems", len(values)):
            return False
        alternatives = list(self._iter_alternatives(schema.get("items", True)))
        return all(self._is_fit(value, alternatives) for value in values)

    def _are_properties_valid(self, values: dict[str, Any], schema: Schema) -> bool:
        if not values.keys() >= set(schema.get("required", ())):
            return False
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        return all(
            self._is_fit(value, self._iter_alternatives(properties.get(name, more)))
            for name, value in values.items()
        )


def _list_declared(schema: Schema, name: str) -> list[Any]:
    """Return the schemas of a property. Patterns are the client's, so they are not tried."""
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties")
    if name in properties:
        return [properties[name]]
    more = list(patterns.values()) if isinstance(patterns, Mapping) else []
    return [*more, schema.get("additionalProperties")]


def _merge(merged: dict[str, Any], part: Schema) -> None:
    """Add the keywords of a part that holds too."""
    for keyword, value in part.items():
        if keyword == "properties":
            before = merged.get(keyword, ChainMap({})).maps
            merged[keyword] = ChainMap(dict(value) if isinstance(value, Mapping) else {}, *before)
        elif keyword == "type" and (kinds := _list_kinds(part)) and (before := _list_kinds(merged)):
            merged[keyword] = sorted(_intersect_kinds(kinds, before))
        elif keyword in _CHECKED or keyword == "patternProperties":
            if merged.get(keyword, value) != value:
                merged[_OTHER] = True  # both hold, and one is kept
            merged[keyword] = value
        elif keyword not in ANNOTATIONS and keyword not in _JOINING:
            merged[_OTHER] = True


def _intersect_kinds(one: set[str], other: set[str]) -> set[str]:
    common = one & other
    for kinds, others in ((one, other), (other, one)):
        if "integer" in kinds and "number" in others:
            common.add("integer")
    return common


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _list_kinds(schema: Schema) -> set[str] | None:
    """Return the types that a schema allows; None for all."""
    if isinstance(schema.get("type"), str | list):
        return set(list_types(schema))
    return {kind for value in list_values(schema) or () for kind in list_value_types(value)} or None
