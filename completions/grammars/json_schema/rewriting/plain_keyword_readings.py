"""The positive and negative readings of the keywords that contain no schema."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from completions.grammars.json_schema.rewriting.formats import get_pattern
from completions.grammars.json_schema.rewriting.shapes import (
    Array,
    Boolean,
    Null,
    Number,
    Object,
    Shape,
    Some,
    String,
    Union,
    make_everything,
    make_only,
    meet,
)
from completions.grammars.schema.keywords import JSONSchema
from completions.grammars.schema.nodes import SchemaNode


class Reading(NamedTuple):
    """One group of keywords."""

    positive: Callable[[], Union]
    negative: Callable[[], Union]


def iter_plain_readings(node: SchemaNode) -> Iterator[Reading]:
    """Yield readings of the keywords that contain no schema."""
    if "type" in node.keywords:
        yield _read_types(node.types)
    for keyword, inner in node.keywords.items():
        if keyword in ("const", "enum"):
            yield _read_values([inner] if keyword == "const" else inner)
        elif keyword == "required" and inner:
            yield _read_required(inner)
        elif keyword in _COUNTED:
            yield _read_count(_COUNTED[keyword], inner, is_low=keyword.startswith("min"))
        elif keyword == "pattern" or (keyword == "format" and get_pattern(inner)):
            yield _read_pattern(inner if keyword == "pattern" else get_pattern(inner))
        elif keyword == "multipleOf":
            yield _read_multiple(inner)
    yield from _iter_bounds(node)
    for keyword in ("minProperties", "maxProperties"):
        if keyword in node.keywords:
            whole, count = Object(counted=f"{node.pointer}/{keyword}"), node.keywords[keyword]
            yield _read_count(whole, count, is_low=keyword == "minProperties")


_TYPES: Mapping[str, Shape] = {
    "null": Null(),
    "boolean": Boolean(),
    "number": Number(),
    "integer": Number(integer=True),
    "string": String(),
    "array": Array(),
    "object": Object(),
}
_FRACTION = Number(integer=False)
_COUNTED: Mapping[str, String | Array] = {
    "minLength": String(),
    "maxLength": String(),
    "minItems": Array(),
    "maxItems": Array(),
}
"""What each of these keywords bounds."""


def _read_types(types: list[str]) -> Reading:
    if "number" in types:
        types = [name for name in types if name != "integer"]
    shapes = [_TYPES[name] for name in types]
    kinds = {type(shape) for shape in shapes}
    fraction = [_FRACTION] if "integer" in types else []
    others = [shape for shape in make_everything() if type(shape) not in kinds]
    return Reading(lambda: list(shapes), lambda: [*others, *fraction])


def _read_values(values: list[object]) -> Reading:
    def positive() -> Union:
        texts = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
        flags = tuple(flag for flag in (False, True) if any(value is flag for value in values))
        union: Union = [String(values=texts)] if texts else []
        union += [Boolean(flags)] if flags else []
        union += [Null()] if None in values else []
        for value in values:
            if isinstance(value, int | float) and not isinstance(value, bool):
                union.append(Number(low=value, high=value))
            elif isinstance(value, list):
                items: tuple[JSONSchema, ...] = tuple({"const": item} for item in value)
                union.append(Array(items, False, len(value), len(value)))
            elif isinstance(value, dict):
                properties: dict[str, JSONSchema] = {
                    name: {"const": each} for name, each in value.items()
                }
                union.append(Object(properties, {}, False, tuple(value)))
        return union

    def negative() -> Union:
        texts = tuple(value for value in values if isinstance(value, str))
        numbers = tuple(
            value
            for value in values
            if isinstance(value, int | float) and not isinstance(value, bool)
        )
        flags = tuple(flag for flag in (False, True) if not any(value is flag for value in values))
        union: Union = [String(excluded=texts), Number(excluded=numbers)]
        union += [Boolean(flags)] if flags else []
        union += [] if None in values else [Null()]
        for kind in (list, dict):
            same_kind = [value for value in values if isinstance(value, kind)]
            inside: Union = [Array() if kind is list else Object()]
            for value in same_kind:
                inside = meet(inside, _exclude_value(value), lambda shape: True)
            union += inside
        return union

    return Reading(positive, negative)


def _exclude_value(value: list[object] | dict[str, object]) -> Union:
    """Return the arrays, or the objects, that are not this one."""
    union: Union = []
    if isinstance(value, list):
        union = [Array(low=len(value) + 1)]
        if value:
            union.append(Array(high=len(value) - 1))
        for index, item in enumerate(value):
            prefix: tuple[JSONSchema, ...] = (*[True] * index, {"not": {"const": item}})
            union.append(Array(prefix=prefix, low=index + 1))
        return union
    some = Some(True, "", tuple(value))
    union = [Object(low=1) if not value else Object(some=(some,))]
    for name, item in value.items():
        union.append(Object(properties={name: False}))
        union.append(Object(properties={name: {"not": {"const": item}}}, required=(name,)))
    return union


def _read_required(names: list[str]) -> Reading:
    unique = tuple(dict.fromkeys(names))
    return Reading(
        lambda: make_only(Object(required=unique)),
        lambda: [Object(properties={name: False}) for name in unique],
    )


def _read_count(whole: String | Array | Object, count: int, *, is_low: bool) -> Reading:
    """Return the reading of a keyword that bounds a count from below or from above."""
    if is_low:
        return Reading(
            lambda: make_only(replace(whole, low=count)),
            lambda: [replace(whole, high=count - 1)] if count else [],
        )
    return Reading(
        lambda: make_only(replace(whole, high=count)), lambda: [replace(whole, low=count + 1)]
    )


def _read_pattern(pattern: str) -> Reading:
    return Reading(
        lambda: make_only(String(patterns=(pattern,))), lambda: [String(lacking=(pattern,))]
    )


def _read_multiple(of: float) -> Reading:
    if of == 1:
        return Reading(lambda: make_only(Number(integer=True)), lambda: [_FRACTION])
    return Reading(lambda: make_only(Number(multiples=(of,))), lambda: [Number(others=(of,))])


def _iter_bounds(node: SchemaNode) -> Iterator[Reading]:
    low, high = node.get("minimum"), node.get("maximum")
    over, under = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if low is not None:
        yield _make_bounded(
            Number(low=low, above=over is True), Number(high=low, below=over is not True)
        )
    if high is not None:
        yield _make_bounded(
            Number(high=high, below=under is True), Number(low=high, above=under is not True)
        )
    if over is not None and not isinstance(over, bool):
        yield _make_bounded(Number(low=over, above=True), Number(high=over))
    if under is not None and not isinstance(under, bool):
        yield _make_bounded(Number(high=under, below=True), Number(low=under))


def _make_bounded(inside: Number, outside: Number) -> Reading:
    return Reading(lambda: make_only(inside), lambda: [outside])
