"""Converts an argument of a GLM call, which has no quotes around strings, to JSON."""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from completions.chat.tools import dump
from completions.contract import strict_json
from completions.grammars.json_schema.keywords import ANNOTATIONS
from completions.grammars.json_schema.pointers import resolve

Schema = Mapping[str, Any]

_MAX_DEPTH = 16
"""The deepest nesting of references and unions that is followed."""
_BOUNDS = {
    "minimum": operator.ge, "exclusiveMinimum": operator.gt,
    "maximum": operator.le, "exclusiveMaximum": operator.lt,
}  # fmt: skip
_ENFORCED = {"type", "enum", "const", "items", "minItems", "maxItems", *_BOUNDS}
"""Keywords that are checked; with any other, it is undecided whether a value is an instance."""


class ArgumentReader:
    """The arguments of one tool. Its schema is unchecked client input and may hold anything."""

    def __init__(self, schema: Schema) -> None:
        self._root = dict(schema)
        self._known: dict[str, list[Schema]] = {}

    def is_string(self, name: str) -> bool:
        """Whether only strings are allowed, so that every text is one."""
        schemas = self._schemas(name)
        return bool(schemas) and all(_kinds(schema) == {"string"} for schema in schemas)

    def as_json(self, name: str, text: str) -> str:
        """The JSON of an argument.

        A text that is valid JSON is read as a string only if the schema allows strings and the
        value is not certainly an instance of the schema.
        """
        try:
            value = strict_json.loads(text)
        except strict_json.StrictJSONError:
            return dump(text)
        schemas = self._schemas(name)
        allows_strings = any("string" in (_kinds(schema) or ()) for schema in schemas)
        if allows_strings and not any(self._fits(value, schema) for schema in schemas):
            return dump(text)
        return text.strip()

    def _schemas(self, name: str) -> list[Schema]:
        """The alternatives of an argument's schema."""
        if name not in self._known:
            root = next(self._alternatives(self._root), {})
            properties = root.get("properties")
            declared = properties if isinstance(properties, dict) else {}
            schema = declared.get(name, root.get("additionalProperties"))
            self._known[name] = list(self._alternatives(schema))
        return self._known[name]

    def _alternatives(self, schema: Any, depth: int = 0) -> Iterator[Schema]:
        """The schemas that references and unions lead to."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return
        reference = schema.get("$ref")
        found = resolve(self._root, reference) if isinstance(reference, str) else None
        union = schema.get("anyOf", schema.get("oneOf"))
        if found is not None:
            yield from self._alternatives(found[1], depth + 1)
        elif isinstance(union, list):
            for option in union:
                yield from self._alternatives(option, depth + 1)
        else:
            yield schema

    def _fits(self, value: Any, schema: Schema) -> bool:
        """Whether a value that is not a string is certainly an instance of a schema."""
        if isinstance(value, str) or schema.keys() - ANNOTATIONS - _ENFORCED:
            return False
        try:
            return self._holds(value, schema)
        except TypeError:  # a bound that is not a number
            return False

    def _holds(self, value: Any, schema: Schema) -> bool:
        listed = _listed(schema)
        # JSON's true is not 1.
        alike = (each for each in listed or () if isinstance(each, bool) == isinstance(value, bool))
        if listed is not None and value not in alike:
            return False
        kinds = _kinds(schema)
        if kinds is not None and kinds.isdisjoint(_kinds_of_value(value)):
            return False
        if isinstance(value, list):
            return self._fits_items(value, schema)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return all(test(value, schema[name]) for name, test in _BOUNDS.items() if name in schema)

    def _fits_items(self, values: list[Any], schema: Schema) -> bool:
        items = schema.get("items", True)
        if not schema.get("minItems", 0) <= len(values) <= schema.get("maxItems", len(values)):
            return False
        alternatives = list(self._alternatives(items))
        return items is True or all(
            any(
                _kinds(each) == {"string"} if isinstance(value, str) else self._fits(value, each)
                for each in alternatives
            )
            for value in values
        )


def _kinds(schema: Schema) -> set[str] | None:
    """The types that a schema allows; None for all."""
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, list):
        return {kind for kind in kinds if isinstance(kind, str)}
    listed = _listed(schema)
    return {kind for value in listed for kind in _kinds_of_value(value)} if listed else None


def _listed(schema: Schema) -> list[Any] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _kinds_of_value(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if float(value).is_integer() else {"number"}
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}
