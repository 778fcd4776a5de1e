"""A schema, or its negation, as a union of shapes: the readings of its keywords together.

Each group of keywords that belong together has a positive reading and, by De Morgan, a negative
one. Those of keywords that hold schemas are here, the others in `plain_keyword_readings`. A
schema is the intersection of its positive readings; its negation is the union of its negative ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from completions.grammars.json_schema.rewriting.automata import TooManyStatesError
from completions.grammars.json_schema.rewriting.plain_keyword_readings import (
    Reading,
    plain_readings,
)
from completions.grammars.json_schema.rewriting.schema_algebra import Node, both, negated, values_of
from completions.grammars.json_schema.rewriting.shapes import (
    Array,
    Boolean,
    Contains,
    Number,
    Object,
    Shape,
    Some,
    String,
    TooLargeError,
    Union,
    everything,
    matches,
    meet,
    only,
    simplified,
)
from completions.grammars.patterns.network import PatternError

MAX_READINGS = 2_000
"""Schemas read for one request."""
MAX_WORK = 20_000
"""Shapes made for one request; one with several patterns counts as many, by their states."""
_HARD_PATTERNS_WORK = 2_000
MAX_LOOKS = 4
"""Levels of schemas inside schemas that are read to find that a value is impossible."""


class CircularError(Exception):
    """A schema refers to itself without a step into a value."""


class Reader:
    """Reads the schemas of one request."""

    def __init__(
        self, resolve: Callable[[str], tuple[str, Any] | None], places: Mapping[int, str]
    ) -> None:
        """`resolve` gives the pointer and the schema that a reference leads to; `places` gives the
        pointer of each of the client's schemas by its id."""
        self.resolve = resolve
        self._places = places
        self._open: list[tuple[str, bool]] = []
        """The references that are being followed."""
        self._known: dict[tuple[int, bool], tuple[Node, Union]] = {}
        self._readings = self._work = self._looks = 0

    def read(self, node: Node, pointer: str, *, positive: bool = True) -> Union:
        """Raises TooLargeError and CircularError."""
        if isinstance(node, bool):
            return everything() if node is positive else []
        known = self._known.get((id(node), positive))
        if known is not None:
            return known[1]
        pointer = self._places.get(id(node), pointer)
        self._readings += 1
        if self._readings > MAX_READINGS:
            raise TooLargeError
        if positive:
            found = self._read(node, pointer)
        else:
            readings = list(self._readings_of(node, pointer, everything()))
            found = simplified([shape for reading in readings for shape in reading.negative()])
        # The node is kept, so that no other can have its id.
        self._known[id(node), positive] = node, found
        return found

    def _read(self, node: Mapping[str, Any], pointer: str) -> Union:
        found = everything()
        for reading in self._readings_of(node, pointer, found):
            found[:] = meet(list(found), reading.positive(), self.is_possible)
        return list(found)

    def meet(self, one: Union, other: Union) -> Union:
        return meet(one, other, self.is_possible)

    def is_possible(self, shape: Shape) -> bool:
        """Whether a value may have this shape. True if that cannot be decided cheaply.

        Raises TooLargeError when a request asks too often.
        """
        self._work += _work_of(shape)
        if self._work > MAX_WORK:
            raise TooLargeError
        try:
            return self._may_be(shape)
        except PatternError:
            return True

    def _may_be(self, shape: Shape) -> bool:
        if isinstance(shape, Boolean):
            return bool(shape.values)
        if isinstance(shape, Number | String):
            return not shape.is_empty()
        if isinstance(shape, Array):
            shape = shape.trimmed()
            if shape.high is not None and shape.low > shape.high:
                return False
            return all(self._is_possible(shape.at(index)) for index in range(min(shape.low, 32)))
        if isinstance(shape, Object):
            return self._is_possible_object(shape)
        return True

    def _is_possible_object(self, shape: Object) -> bool:
        if shape.high is not None and max(shape.low, len(shape.required)) > shape.high:
            return False
        if shape.is_closed and shape.low > sum(
            node is not False for node in shape.properties.values()
        ):
            return False
        return all(self._is_possible(shape.named(name)) for name in shape.required)

    def _is_possible(self, node: Node) -> bool:
        """Whether a value may match. Reads only schemas that were combined from others, since only
        they can be impossible without notice."""
        if isinstance(node, bool):
            return node
        if node.keys() != {"allOf"} or self._looks >= MAX_LOOKS:
            return values_of(node) != []
        self._looks += 1
        try:
            return bool(self.read(node, ""))
        except CircularError:
            return True
        finally:
            self._looks -= 1

    def _readings_of(self, node: Mapping[str, Any], pointer: str, base: Union) -> Iterator[Reading]:
        """The groups of a schema. `base` is what the groups before this one leave."""
        yield from plain_readings(node, pointer)
        if node.keys() & {"properties", "patternProperties", "additionalProperties"}:
            yield self._properties(node, pointer)
        if node.keys() & {"items", "prefixItems", "additionalItems"}:
            yield self._items(node, pointer)
        if node.get("uniqueItems") is True:
            yield _unique(f"{pointer}/uniqueItems")
        if "contains" in node:
            yield _contains(node, f"{pointer}/contains")
        if "propertyNames" in node:
            yield _names(node["propertyNames"], f"{pointer}/propertyNames")
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in node.get(keyword, {}).items():
                yield self._dependency(name, needed, f"{pointer}/{keyword}")
        yield from self._combinations(node, pointer, base)

    def _properties(self, node: Mapping[str, Any], pointer: str) -> Reading:
        patterns: Mapping[str, Node] = node.get("patternProperties", {})
        rest: Node = node.get("additionalProperties", True)
        properties: dict[str, Node] = {}
        for name, inner in node.get("properties", {}).items():
            for pattern, each in patterns.items():
                if matches(pattern, name):
                    inner = both(inner, each)
            properties[name] = inner

        def negative() -> Union:
            found: Union = []
            for name, inner in node.get("properties", {}).items():
                if (wrong := negated(inner)) is not False:
                    found.append(Object(properties={name: wrong}, required=(name,)))
            for pattern, inner in patterns.items():
                if (wrong := negated(inner)) is not False:
                    place = f"{pointer}/patternProperties"
                    found.append(Object(some=(Some(wrong, place, pattern=pattern),)))
            if (wrong := negated(rest)) is not False:
                place = f"{pointer}/additionalProperties"
                some = Some(wrong, place, frozenset(properties), tuple(patterns))
                found.append(Object(some=(some,)))
            return found

        return Reading(lambda: only(Object(properties, dict(patterns), rest)), negative)

    def _items(self, node: Mapping[str, Any], pointer: str) -> Reading:
        items = node.get("items", True)
        if isinstance(items, list):
            prefix, rest = tuple(items), node.get("additionalItems", True)
        else:
            prefix, rest = tuple(node.get("prefixItems", ())), items

        def negative() -> Union:
            found: Union = []
            for index, inner in enumerate(prefix):
                if (wrong := negated(inner)) is not False:
                    before = (True,) * index
                    found.append(Array(prefix=(*before, wrong), low=index + 1))
            if (wrong := negated(rest)) is False:
                return found
            if rest is False:
                return [*found, Array(low=len(prefix) + 1)]
            if prefix:
                raise TooLargeError
            contains = Contains(wrong, 1, None, f"{pointer}/items")
            return [*found, Array(low=1, contains=(contains,))]

        return Reading(lambda: only(Array(prefix=prefix, rest=rest)), negative)

    def _dependency(self, name: str, needed: Any, pointer: str) -> Reading:
        absent, present = Object(properties={name: False}), Object(required=(name,))
        if isinstance(needed, str):
            needed = [needed]
        node: Node = {"required": needed} if isinstance(needed, list) else needed
        return Reading(
            lambda: self.meet(
                only(absent, present),
                [*only(absent), *self.meet([present], self.read(node, pointer))],
            ),
            lambda: self.meet([present], self.read(node, pointer, positive=False)),
        )

    def _combinations(
        self, node: Mapping[str, Any], pointer: str, base: Union
    ) -> Iterator[Reading]:
        if "$ref" in node:
            yield self._reference(node["$ref"])
        for index, inner in enumerate(node.get("allOf", ())):
            yield self._same(inner, f"{pointer}/allOf/{index}")
        if "not" in node:
            opposite = self._same(node["not"], f"{pointer}/not")
            yield Reading(opposite.negative, opposite.positive)
        if "if" in node and ("then" in node or "else" in node):
            yield self._conditional(node, pointer)
        if "anyOf" in node:
            yield self._any_of(self._options(node["anyOf"], f"{pointer}/anyOf"))
        if "oneOf" in node:
            yield self._one_of(self._options(node["oneOf"], f"{pointer}/oneOf"), base)

    def _options(self, nodes: list[Node], pointer: str) -> list[Reading]:
        return [self._same(node, f"{pointer}/{index}") for index, node in enumerate(nodes)]

    def _same(self, node: Node, pointer: str) -> Reading:
        return Reading(
            lambda: self.read(node, pointer), lambda: self.read(node, pointer, positive=False)
        )

    def _reference(self, reference: str) -> Reading:
        found = self.resolve(reference)
        assert found is not None, "references were checked before"
        pointer, node = found

        def read(positive: bool) -> Union:
            if (pointer, positive) in self._open:
                raise CircularError
            self._open.append((pointer, positive))
            try:
                return self.read(node, pointer, positive=positive)
            finally:
                self._open.pop()

        return Reading(lambda: read(True), lambda: read(False))

    def _conditional(self, node: Mapping[str, Any], pointer: str) -> Reading:
        condition = self._same(node["if"], f"{pointer}/if")
        then = self._same(node.get("then", True), f"{pointer}/then")
        otherwise = self._same(node.get("else", True), f"{pointer}/else")
        return Reading(
            lambda: [
                *self.meet(condition.positive(), then.positive()),
                *self.meet(condition.negative(), otherwise.positive()),
            ],
            lambda: [
                *self.meet(condition.positive(), then.negative()),
                *self.meet(condition.negative(), otherwise.negative()),
            ],
        )

    def _any_of(self, options: list[Reading]) -> Reading:
        return Reading(
            lambda: simplified([shape for option in options for shape in option.positive()]),
            lambda: self._all(option.negative for option in options),
        )

    def _all(self, unions: Iterable[Callable[[], Union]]) -> Union:
        found = everything()
        for union in unions:
            found = self.meet(found, union())
        return found

    def _one_of(self, options: list[Reading], base: Union) -> Reading:
        def positive() -> Union:
            held = [self.meet(list(base), option.positive()) for option in options]
            found: Union = []
            for index, union in enumerate(held):
                for other, option in enumerate(options):
                    if other != index and self.meet(union, held[other]):
                        union = self.meet(union, option.negative())
                found += union
            return simplified(found)

        def negative() -> Union:
            held = [option.positive() for option in options]
            found = self._all(option.negative for option in options)
            for index, union in enumerate(held):
                for other in held[index + 1 :]:
                    found = [*found, *self.meet(union, other)]
            return simplified(found)

        return Reading(positive, negative)


def _work_of(shape: Shape) -> int:
    if not isinstance(shape, String) or len(shape.patterns) + len(shape.lacking) < 2:
        return 1
    try:
        return 1 + len(shape.language.rows) * len(shape.language.cuts) // 10
    except TooManyStatesError:
        return _HARD_PATTERNS_WORK
    except PatternError:
        return 1


def _contains(node: Mapping[str, Any], pointer: str) -> Reading:
    inner: Node = node["contains"]
    low, high = int(node.get("minContains", 1)), node.get("maxContains")
    found = Contains(inner, low, high, pointer)

    def negative() -> Union:
        result: Union = [] if low == 0 else [_fewer(inner, low, pointer)]
        if high is not None:
            result.append(Array(contains=(Contains(inner, int(high) + 1, None, pointer),)))
        return result

    return Reading(lambda: only(_containing(found)), negative)


def _containing(found: Contains) -> Array:
    if found.high == 0 and found.low == 0:
        return Array(rest=negated(found.node))
    return Array(low=found.low, contains=(found,))


def _fewer(node: Node, count: int, pointer: str) -> Array:
    if count == 1:
        return Array(rest=negated(node))
    return Array(contains=(Contains(node, 0, count - 1, pointer),))


def _names(node: Node, pointer: str) -> Reading:
    return Reading(
        lambda: only(Object(names=(node,), names_at=pointer)),
        lambda: [Object(some=(Some(True, pointer, misnamed=True),))],
    )


def _unique(pointer: str) -> Reading:
    return Reading(lambda: only(Array(unique=pointer)), lambda: [Array(low=2, repeating=pointer)])
