"""Types of columns, as far as a JSON Schema determines them. Every value may also be null."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from completions.batches.counted_fields import resolve_reference

MAX_PARTS = 5000
"""The most parts of a schema that are visited; the rest has the type JSON."""
MAX_DEPTH = 32


class Scalar(Enum):
    TEXT = "text"
    INTEGER = "integer"
    """64 bits."""
    NUMBER = "number"
    """A double."""
    BOOLEAN = "boolean"
    JSON = "JSON"
    """Any value, as JSON text."""
    NULL = "null"
    """No value but null. No column has this type."""


@dataclass(frozen=True, slots=True)
class ListOf:
    item: "Type"


@dataclass(frozen=True, slots=True)
class Struct:
    fields: Mapping[str, "Type"]


Type = Scalar | ListOf | Struct

_NAMES = {
    "string": Scalar.TEXT,
    "integer": Scalar.INTEGER,
    "number": Scalar.NUMBER,
    "boolean": Scalar.BOOLEAN,
    "null": Scalar.NULL,
}
_NUMBERS = (Scalar.INTEGER, Scalar.NUMBER)


def infer_type(schema: object) -> Type:
    """Infer the type of the values that a JSON Schema accepts."""
    return _Reader(schema).infer_type(schema, frozenset())


def unite_types(one: Type, other: Type) -> Type:
    """Return the type of values that have one of two types."""
    if Scalar.NULL in (one, other):
        return other if one is Scalar.NULL else one
    if Scalar.JSON in (one, other):
        return Scalar.JSON
    return _merge_types(one, other, unite_types, Scalar.NUMBER)


def intersect_types(one: Type, other: Type) -> Type:
    """Return the type of values that two parts of a schema accept."""
    if Scalar.JSON in (one, other):
        return other if one is Scalar.JSON else one
    return _merge_types(one, other, intersect_types, Scalar.INTEGER)


def _merge_types(
    one: Type, other: Type, merge: Callable[[Type, Type], Type], number: Scalar
) -> Type:
    if one == other:
        return one
    if one in _NUMBERS and other in _NUMBERS:
        return number
    if isinstance(one, ListOf) and isinstance(other, ListOf):
        return ListOf(merge(one.item, other.item))
    if isinstance(one, Struct) and isinstance(other, Struct):
        fields = dict(one.fields)
        for name, type in other.fields.items():
            fields[name] = merge(fields[name], type) if name in fields else type
        return Struct(fields)
    return Scalar.JSON


class _Reader:
    """Reads the types of one schema, whose parts may refer to each other."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MAX_PARTS

    def infer_type(self, schema: object, within: frozenset[str]) -> Type:
        """Infer a type. `within` has the references that lead here, and one name for each level of
        nesting."""
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0 or len(within) > MAX_DEPTH:
            return Scalar.JSON
        type: Type = Scalar.JSON
        for part in self._parts(schema, within):
            type = intersect_types(type, part)
        return type

    def _parts(self, schema: Mapping[str, object], within: frozenset[str]) -> Iterator[Type]:
        """Yield the type that each keyword allows."""
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in within:  # otherwise it is recursive
            yield self.infer_type(resolve_reference(self._root, reference), within | {reference})
        if isinstance(values := schema.get("enum"), list):
            yield _unite_all(map(_infer_value_type, values))
        if "const" in schema:
            yield _infer_value_type(schema["const"])
        names = schema.get("type")
        names = names if isinstance(names, list) else [names or _infer_type_name(schema)]
        yield _unite_all(self._infer_named_type(name, schema, within) for name in names)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(several := schema.get(keyword), list) and several:
                yield _unite_all(self.infer_type(each, within) for each in several)
        for each in _list(schema.get("allOf")):
            yield self.infer_type(each, within)

    def _infer_named_type(
        self, name: object, schema: Mapping[str, object], within: frozenset[str]
    ) -> Type:
        below = within | {f"level {len(within)}"}
        if name == "object" and (properties := schema.get("properties")):
            if not isinstance(properties, dict):
                return Scalar.JSON
            return Struct({key: self.infer_type(each, below) for key, each in properties.items()})
        if name == "array" and "items" in schema and not schema.get("prefixItems"):
            return ListOf(self.infer_type(schema["items"], below))
        return _NAMES.get(name, Scalar.JSON) if isinstance(name, str) else Scalar.JSON


def _infer_type_name(schema: Mapping[str, object]) -> str:
    """Return the type to which the keywords of a schema without `type` apply."""
    return "object" if "properties" in schema else "array" if "items" in schema else ""


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _unite_all(types: Iterator[Type]) -> Type:
    union: Type = Scalar.NULL
    for type in types:
        union = unite_types(union, type)
    return union


def _infer_value_type(value: object) -> Type:
    match value:
        case None:
            return Scalar.NULL
        case bool():
            return Scalar.BOOLEAN
        case int():
            return Scalar.INTEGER
        case float():
            return Scalar.NUMBER
        case str():
            return Scalar.TEXT
    return Scalar.JSON


def make_storable(type: Type) -> Type:
    """Return the type of a column, with JSON in place of what Parquet or its readers do not know:
    values that are always null, structs without fields, names of fields that are empty or differ in
    case alone."""
    match type:
        case ListOf(item):
            return ListOf(make_storable(item))
        case Struct(fields):
            names = {name.casefold() for name in fields}
            if not fields or len(names) < len(fields) or not all(map(is_name, fields)):
                return Scalar.JSON
            return Struct({name: make_storable(each) for name, each in fields.items()})
        case Scalar.NULL:
            return Scalar.JSON
    return type


def is_name(name: str) -> bool:
    """Return whether any database takes this name when it is quoted."""
    return bool(name) and name.isprintable()
