"""Types of columns, as far as a JSON Schema determines them. Every value may also be null."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from completions.grammars.schema.nodes import Document, SchemaNode

MAX_PARTS = 5000
"""The most parts of a schema that are visited; the rest has the type JSON."""
MAX_DEPTH = 33


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
    root = Document(schema).root
    return _Reader().infer_type(root, frozenset((root.pointer,)))


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

    def __init__(self) -> None:
        self._left = MAX_PARTS

    def infer_type(self, node: SchemaNode, within: frozenset[str]) -> Type:
        """Infer a type. `within` has the pointers of the targets that lead here, and one name for
        each level of nesting."""
        self._left -= 1
        if self._left < 0 or len(within) > MAX_DEPTH:
            return Scalar.JSON
        type: Type = Scalar.JSON
        for part in self._infer_parts(node, within):
            type = intersect_types(type, part)
        return type

    def _infer_parts(self, node: SchemaNode, within: frozenset[str]) -> Iterator[Type]:
        """Yield the type that each keyword allows."""
        target = node.target
        if target is not None and target.pointer not in within:  # otherwise it is recursive
            yield self.infer_type(target, within | {target.pointer})
        if node.values is not None:
            yield _unite_all(map(_infer_value_type, node.values))
        names = node.types or [_infer_type_name(node)]
        yield _unite_all(self._infer_named_type(name, node, within) for name in names)
        for keyword in ("anyOf", "oneOf"):
            if next(node.iter_schemas(keyword), None):
                options = node.iter_schemas(keyword)
                yield _unite_all(self.infer_type(each, within) for each in options)
        for each in node.iter_schemas("allOf"):
            yield self.infer_type(each, within)

    def _infer_named_type(self, name: str, node: SchemaNode, within: frozenset[str]) -> Type:
        below = within | {f"level {len(within)}"}
        if name == "object" and (properties := node.properties):
            return Struct({key: self.infer_type(each, below) for key, each in properties.items()})
        if name == "array" and "items" in node.keywords and not node.get("prefixItems"):
            return ListOf(Scalar.JSON if node.prefix else self.infer_type(node.rest, below))
        return _NAMES.get(name, Scalar.JSON)


def _infer_type_name(node: SchemaNode) -> str:
    """Return the type to which the keywords of a schema without `type` apply."""
    keywords = node.keywords
    return "object" if "properties" in keywords else "array" if "items" in keywords else ""


def _unite_all(types: Iterator[Type]) -> Type:
    union: Type = Scalar.NULL
    for type in types:
        union = unite_types(union, type)
        if union is Scalar.JSON:
            break
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
