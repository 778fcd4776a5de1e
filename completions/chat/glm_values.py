"""What the text of an argument means in a GLM call, where strings stand without quotes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from completions.chat.tools import dump
from completions.contract import strict_json
from completions.grammars.json_schema.keywords import ANNOTATIONS, BOUNDS, resolve

Schema = Mapping[str, Any]

_MAX_DEPTH = 16
"""References and unions inside each other that are followed."""
_ENFORCED = {"type", "enum", "const", "items", "minItems", "maxItems", *BOUNDS}
"""Keywords that tell whether a value is an instance; others leave that open."""


class ArgumentReader:
    """The arguments of one tool. Its schema is as the client sent it and may hold anything."""

    def __init__(self, schema: Schema) -> None:
        self._root = dict(schema)
        self._known: dict[str, list[Schema]] = {}

    def is_string(self, name: str) -> bool:
        """Whether only strings are allowed, so that every text is one."""
        schemas = self._schemas(name)
        return bool(schemas) and all(_kinds(schema) == {"string"} for schema in schemas)

    def as_json(self, name: str, text: str) -> str:
        """The JSON of an argument. A text that spells a JSON value is a string only if strings are
        allowed and the value is not surely an instance of the schema."""
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
        """Whether a value that is no string is surely an instance of a schema."""
        if isinstance(value, str) or schema.keys() - ANNOTATIONS - _ENFORCED:
            return False
        try:
            return self._holds(value, schema)
        except TypeError:  # a bound that is no number
            return False

    def _holds(self, value: Any, schema: Schema) -> bool:
        listed = _listed(schema)
        if listed is not None and not any(_are_equal(value, each) for each in listed):
            return False
        kinds = _kinds(schema)
        if kinds is not None and kinds.isdisjoint(_kinds_of_value(value)):
            return False
        if isinstance(value, list):
            return self._fits_items(value, schema)
        return _is_within(value, schema)

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


def _is_within(value: Any, schema: Schema) -> bool:
    """Whether a number is within the bounds of a schema."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    tests: Mapping[str, Callable[[Any], bool]] = {
        "minimum": lambda bound: value >= bound, "exclusiveMinimum": lambda bound: value > bound,
        "maximum": lambda bound: value <= bound, "exclusiveMaximum": lambda bound: value < bound,
    }  # fmt: skip
    return all(test(schema[name]) for name, test in tests.items() if name in schema)


def _are_equal(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


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
