"""The positive and negative readings of the keywords that contain no schema."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from completions.grammars.json_schema.rewriting.formats import pattern_of
from completions.grammars.json_schema.rewriting.schema_algebra import Node
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
    everything,
    meet,
    only,
)


class Reading(NamedTuple):
    """One group of keywords."""

    positive: Callable[[], Union]
    negative: Callable[[], Union]


def plain_readings(node: Mapping[str, Any], pointer: str) -> Iterator[Reading]:
    """Readings of the keywords that contain no schema, for the schema at a pointer."""
    if "type" in node:
        yield _types(node["type"])
    for keyword, inner in node.items():
        if keyword in ("const", "enum"):
            yield _values([inner] if keyword == "const" else inner)
        elif keyword == "required" and inner:
            yield _required(inner)
        elif keyword in _COUNTS:
            yield _COUNTS[keyword](int(inner))
        elif keyword == "pattern" or (keyword == "format" and pattern_of(inner)):
            yield _pattern(inner if keyword == "pattern" else pattern_of(inner))
        elif keyword == "multipleOf":
            yield _multiple(inner)
    yield from _bounds(node)
    yield from _counts_of_properties(node, pointer)


_TYPES: Mapping[str, Shape] = {
    "null": Null(), "boolean": Boolean(), "number": Number(), "integer": Number(integer=True),
    "string": String(), "array": Array(), "object": Object(),
}  # fmt: skip
_FRACTION = Number(integer=False)


def _types(names: Any) -> Reading:
    listed = [names] if isinstance(names, str) else names
    if "number" in listed:
        listed = [name for name in listed if name != "integer"]
    shapes = [_TYPES[name] for name in listed]
    kinds = {type(shape) for shape in shapes}
    fraction = [_FRACTION] if "integer" in listed else []
    others = [shape for shape in everything() if type(shape) not in kinds]
    return Reading(lambda: list(shapes), lambda: [*others, *fraction])


def _values(values: list[Any]) -> Reading:
    def positive() -> Union:
        texts = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
        flags = tuple(flag for flag in (False, True) if any(value is flag for value in values))
        found: Union = [String(values=texts)] if texts else []
        found += [Boolean(flags)] if flags else []
        found += [Null()] if None in values else []
        for value in values:
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.append(Number(low=value, high=value))
            elif isinstance(value, list):
                items: tuple[Node, ...] = tuple({"const": item} for item in value)
                found.append(Array(items, False, len(value), len(value)))
            elif isinstance(value, dict):
                properties: dict[str, Node] = {
                    name: {"const": each} for name, each in value.items()
                }
                found.append(Object(properties, {}, False, tuple(value)))
        return found

    def negative() -> Union:
        texts = tuple(value for value in values if isinstance(value, str))
        numbers = tuple(
            value for value in values
            if isinstance(value, int | float) and not isinstance(value, bool)
        )  # fmt: skip
        flags = tuple(flag for flag in (False, True) if not any(value is flag for value in values))
        found: Union = [String(excluded=texts), Number(excluded=numbers)]
        found += [Boolean(flags)] if flags else []
        found += [] if None in values else [Null()]
        for kind in (list, dict):
            listed = [value for value in values if isinstance(value, kind)]
            inside: Union = [Array() if kind is list else Object()]
            for value in listed:
                inside = meet(inside, _different(value), lambda shape: True)
            found += inside
        return found

    return Reading(positive, negative)


def _different(value: list[Any] | dict[str, Any]) -> Union:
    """The arrays, or the objects, that are not this one."""
    found: Union = []
    if isinstance(value, list):
        found = [Array(low=len(value) + 1)]
        if value:
            found.append(Array(high=len(value) - 1))
        for index, item in enumerate(value):
            prefix: tuple[Node, ...] = (*[True] * index, {"not": {"const": item}})
            found.append(Array(prefix=prefix, low=index + 1))
        return found
    some = Some(True, "", frozenset(value))
    found = [Object(low=1) if not value else Object(some=(some,))]
    for name, item in value.items():
        found.append(Object(properties={name: False}))
        found.append(Object(properties={name: {"not": {"const": item}}}, required=(name,)))
    return found


def _required(names: list[str]) -> Reading:
    unique = tuple(dict.fromkeys(names))
    return Reading(
        lambda: only(Object(required=unique)),
        lambda: [Object(properties={name: False}) for name in unique],
    )


def _count(at_least: Callable[[int], Shape], at_most: Callable[[int], Shape], *, low: bool) -> Any:
    """The reading of a keyword that bounds a count from below or from above."""
    if low:
        return lambda count: Reading(
            lambda: only(at_least(count)), lambda: [at_most(count - 1)] if count else []
        )
    return lambda count: Reading(lambda: only(at_most(count)), lambda: [at_least(count + 1)])


_Bounds = tuple[Callable[[int], Shape], Callable[[int], Shape]]
_LENGTHS: _Bounds = (lambda count: String(low=count)), (lambda count: String(high=count))
_ITEMS: _Bounds = (lambda count: Array(low=count)), (lambda count: Array(high=count))
_COUNTS: Mapping[str, Callable[[int], Reading]] = {
    "minLength": _count(*_LENGTHS, low=True), "maxLength": _count(*_LENGTHS, low=False),
    "minItems": _count(*_ITEMS, low=True), "maxItems": _count(*_ITEMS, low=False),
}  # fmt: skip


def _counts_of_properties(node: Mapping[str, Any], pointer: str) -> Iterator[Reading]:
    for keyword in ("minProperties", "maxProperties"):
        if keyword not in node:
            continue
        place = f"{pointer}/{keyword}"

        def at_least(count: int, place: str = place) -> Shape:
            return Object(low=count, counted=place)

        def at_most(count: int, place: str = place) -> Shape:
            return Object(high=count, counted=place)

        reading = _count(at_least, at_most, low=keyword == "minProperties")
        yield reading(int(node[keyword]))


def _pattern(pattern: str) -> Reading:
    return Reading(lambda: only(String(patterns=(pattern,))), lambda: [String(lacking=(pattern,))])


def _multiple(of: float) -> Reading:
    if of == 1:
        return Reading(lambda: only(Number(integer=True)), lambda: [_FRACTION])
    return Reading(lambda: only(Number(multiples=(of,))), lambda: [Number(others=(of,))])


def _bounds(node: Mapping[str, Any]) -> Iterator[Reading]:
    low, high = node.get("minimum"), node.get("maximum")
    over, under = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if low is not None:
        yield _bounded(
            Number(low=low, above=over is True), Number(high=low, below=over is not True)
        )
    if high is not None:
        yield _bounded(
            Number(high=high, below=under is True), Number(low=high, above=under is not True)
        )
    if over is not None and not isinstance(over, bool):
        yield _bounded(Number(low=over, above=True), Number(high=over))
    if under is not None and not isinstance(under, bool):
        yield _bounded(Number(high=under, below=True), Number(low=under))


def _bounded(inside: Number, outside: Number) -> Reading:
    return Reading(lambda: only(inside), lambda: [outside])
