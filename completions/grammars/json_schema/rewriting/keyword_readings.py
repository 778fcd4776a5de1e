"""A schema, or its negation, as a union of shapes: the readings of its keywords together.

Each group of keywords that belong together has a positive reading and, by De Morgan, a negative
one. Those of keywords that hold schemas are here, the others in `plain_keyword_readings`. A
schema is the intersection of its positive readings; its negation is the union of its negative ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from completions.grammars.json_schema.rewriting.plain_keyword_readings import (
    Reading,
    iter_plain_readings,
)
from completions.grammars.json_schema.rewriting.schema_algebra import combine, list_values, negate
from completions.grammars.json_schema.rewriting.shapes import (
    Array,
    Boolean,
    Contains,
    Number,
    Object,
    Shape,
    Some,
    String,
    TooManyShapesError,
    Union,
    is_match,
    make_everything,
    make_only,
    meet,
    simplify,
)
from completions.grammars.schema.keywords import JSONSchema
from completions.grammars.schema.nodes import Document, SchemaNode
from completions.regular.nfa import PatternError, TooLargeError

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
    """Reader of the schemas of one request."""

    def __init__(self, document: Document, pointers: Mapping[int, str]) -> None:
        """`pointers` gives the pointer of each of the client's schemas by its id."""
        self.document = document
        self._places = pointers
        self._open: list[tuple[str, bool]] = []
        """The references that are being followed."""
        self._known: dict[tuple[int, bool], tuple[JSONSchema, Union]] = {}
        self._readings = self._work = self._looks = 0

    def read(self, schema: JSONSchema, pointer: str = "", *, positive: bool = True) -> Union:
        """Raise TooManyShapesError and CircularError."""
        if isinstance(schema, bool):
            return make_everything() if schema is positive else []
        cached = self._known.get((id(schema), positive))
        if cached is not None:
            return cached[1]
        node = self.document.parse(schema, self._places.get(id(schema), pointer))
        self._readings += 1
        if self._readings > MAX_READINGS:
            raise TooManyShapesError
        if positive:
            union = self._read(node)
        else:
            readings = list(self._iter_readings(node, make_everything()))
            union = simplify([shape for reading in readings for shape in reading.negative()])
        # The schema is kept, so that no other can have its id.
        self._known[id(schema), positive] = schema, union
        return union

    def _read(self, node: SchemaNode) -> Union:
        union = make_everything()
        for reading in self._iter_readings(node, union):
            union[:] = meet(list(union), reading.positive(), self.is_possible)
        return list(union)

    def meet(self, one: Union, other: Union) -> Union:
        return meet(one, other, self.is_possible)

    def is_possible(self, shape: Shape) -> bool:
        """Return whether a value may have this shape. True if that cannot be decided cheaply.

        Raises TooManyShapesError when a request asks too often.
        """
        self._work += _estimate_work(shape)
        if self._work > MAX_WORK:
            raise TooManyShapesError
        try:
            return self._can_be(shape)
        except PatternError:
            return True

    def _can_be(self, shape: Shape) -> bool:
        if isinstance(shape, Boolean):
            return bool(shape.values)
        if isinstance(shape, Number | String):
            return not shape.is_empty()
        if isinstance(shape, Array):
            shape = shape.trim()
            if shape.high is not None and shape.low > shape.high:
                return False
            return all(
                self._is_possible(shape.get_item(index)) for index in range(min(shape.low, 32))
            )
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
        return all(self._is_possible(shape.get_property(name)) for name in shape.required)

    def _is_possible(self, node: JSONSchema) -> bool:
        """Return whether a value may match. Reads only schemas that were combined from others,
        since only they can be impossible without notice."""
        if isinstance(node, bool):
            return node
        if node.keys() != {"allOf"} or self._looks >= MAX_LOOKS:
            return list_values(node) != []
        self._looks += 1
        try:
            return bool(self.read(node))
        except CircularError:
            return True
        finally:
            self._looks -= 1

    def _iter_readings(self, node: SchemaNode, base: Union) -> Iterator[Reading]:
        """Yield the groups of a schema. `base` is what the groups before this one leave."""
        keywords = node.keywords.keys()
        yield from iter_plain_readings(node)
        if keywords & {"properties", "patternProperties", "additionalProperties"}:
            yield _read_properties(node)
        if keywords & {"items", "prefixItems", "additionalItems"}:
            yield _read_items(node)
        if node.get("uniqueItems"):
            yield _read_unique(f"{node.pointer}/uniqueItems")
        if "contains" in keywords:
            yield _read_contains(node)
        if "propertyNames" in keywords:
            yield _read_names(node.get_schema("propertyNames"))
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in node.get(keyword, {}).items():
                yield self._read_dependency(name, needed, f"{node.pointer}/{keyword}")
        yield from self._iter_combinations(node, base)

    def _read_dependency(self, name: str, needed: Any, pointer: str) -> Reading:
        absent, present = Object(properties={name: False}), Object(required=(name,))
        if isinstance(needed, str):
            needed = [needed]
        node: JSONSchema = {"required": needed} if isinstance(needed, list) else needed
        return Reading(
            lambda: self.meet(
                make_only(absent, present),
                [*make_only(absent), *self.meet([present], self.read(node, pointer))],
            ),
            lambda: self.meet([present], self.read(node, pointer, positive=False)),
        )

    def _iter_combinations(self, node: SchemaNode, base: Union) -> Iterator[Reading]:
        keywords = node.keywords.keys()
        if "$ref" in keywords:
            yield self._read_reference(node.target)
        for inner in node.list_schemas("allOf"):
            yield self._read_inner(inner)
        if "not" in keywords:
            opposite = self._read_inner(node.get_schema("not"))
            yield Reading(opposite.negative, opposite.positive)
        if "if" in keywords and keywords & {"then", "else"}:
            yield self._read_conditional(*map(node.get_schema, ("if", "then", "else")))
        if "anyOf" in keywords:
            yield self._read_any_of(self._read_options(node, "anyOf"))
        if "oneOf" in keywords:
            yield self._read_one_of(self._read_options(node, "oneOf"), base)

    def _read_options(self, node: SchemaNode, keyword: str) -> list[Reading]:
        return [self._read_inner(option) for option in node.list_schemas(keyword)]

    def _read_inner(self, node: SchemaNode) -> Reading:
        return Reading(
            lambda: self.read(node.schema, node.pointer),
            lambda: self.read(node.schema, node.pointer, positive=False),
        )

    def _read_reference(self, target: SchemaNode | None) -> Reading:
        assert target is not None, "references were checked before"
        inner = self._read_inner(target)

        def follow(positive: bool) -> Union:
            if (target.pointer, positive) in self._open:
                raise CircularError
            self._open.append((target.pointer, positive))
            try:
                return inner.positive() if positive else inner.negative()
            finally:
                self._open.pop()

        return Reading(lambda: follow(True), lambda: follow(False))

    def _read_conditional(self, *nodes: SchemaNode) -> Reading:
        condition, then, otherwise = map(self._read_inner, nodes)
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

    def _read_any_of(self, options: list[Reading]) -> Reading:
        return Reading(
            lambda: simplify([shape for option in options for shape in option.positive()]),
            lambda: self._meet_all(option.negative for option in options),
        )

    def _meet_all(self, unions: Iterable[Callable[[], Union]]) -> Union:
        result = make_everything()
        for union in unions:
            result = self.meet(result, union())
        return result

    def _read_one_of(self, options: list[Reading], base: Union) -> Reading:
        def positive() -> Union:
            held = [self.meet(list(base), option.positive()) for option in options]
            result: Union = []
            for index, union in enumerate(held):
                for other, option in enumerate(options):
                    if other != index and self.meet(union, held[other]):
                        union = self.meet(union, option.negative())
                result += union
            return simplify(result)

        def negative() -> Union:
            held = [option.positive() for option in options]
            result = self._meet_all(option.negative for option in options)
            for index, union in enumerate(held):
                for other in held[index + 1 :]:
                    result = [*result, *self.meet(union, other)]
            return simplify(result)

        return Reading(positive, negative)


def _estimate_work(shape: Shape) -> int:
    if not isinstance(shape, String) or len(shape.patterns) + len(shape.lacking) < 2:
        return 1
    try:
        return 1 + len(shape.language.rows) * len(shape.language.cuts) // 10
    except TooLargeError:
        return _HARD_PATTERNS_WORK
    except PatternError:
        return 1


def _read_properties(node: SchemaNode) -> Reading:
    declared: Mapping[str, JSONSchema] = node.get("properties", {})
    patterns: Mapping[str, JSONSchema] = node.get("patternProperties", {})
    rest = node.get_schema("additionalProperties")
    properties: dict[str, JSONSchema] = {}
    for name, inner in declared.items():
        for pattern, each in patterns.items():
            if is_match(pattern, name):
                inner = combine(inner, each)
        properties[name] = inner

    def negative() -> Union:
        union: Union = []
        for name, inner in declared.items():
            if (wrong := negate(inner)) is not False:
                union.append(Object(properties={name: wrong}, required=(name,)))
        for pattern, inner in patterns.items():
            if (wrong := negate(inner)) is not False:
                path = f"{node.pointer}/patternProperties"
                union.append(Object(some=(Some(wrong, path, pattern=pattern),)))
        if (wrong := negate(rest.schema)) is not False:
            some = Some(wrong, rest.pointer, tuple(properties), tuple(patterns))
            union.append(Object(some=(some,)))
        return union

    return Reading(lambda: make_only(Object(properties, dict(patterns), rest.schema)), negative)


def _read_items(node: SchemaNode) -> Reading:
    prefix, rest = tuple(each.schema for each in node.prefix), node.rest.schema

    def negative() -> Union:
        union: Union = []
        for index, inner in enumerate(prefix):
            if (wrong := negate(inner)) is not False:
                before = (True,) * index
                union.append(Array(prefix=(*before, wrong), low=index + 1))
        if (wrong := negate(rest)) is False:
            return union
        if rest is False:
            return [*union, Array(low=len(prefix) + 1)]
        if prefix:
            raise TooManyShapesError
        contains = Contains(wrong, 1, None, f"{node.pointer}/items")
        return [*union, Array(low=1, contains=(contains,))]

    return Reading(lambda: make_only(Array(prefix=prefix, rest=rest)), negative)


def _read_contains(node: SchemaNode) -> Reading:
    inner, pointer = node.keywords["contains"], f"{node.pointer}/contains"
    low, high = int(node.get("minContains", 1)), node.get("maxContains")
    contains = Contains(inner, low, high, pointer)

    def negative() -> Union:
        result: Union = [] if low == 0 else [_make_fewer(inner, low, pointer)]
        if high is not None:
            result.append(Array(contains=(Contains(inner, int(high) + 1, None, pointer),)))
        return result

    return Reading(lambda: make_only(_make_containing(contains)), negative)


def _make_containing(contains: Contains) -> Array:
    if contains.high == 0 and contains.low == 0:
        return Array(rest=negate(contains.node))
    return Array(low=contains.low, contains=(contains,))


def _make_fewer(node: JSONSchema, count: int, pointer: str) -> Array:
    if count == 1:
        return Array(rest=negate(node))
    return Array(contains=(Contains(node, 0, count - 1, pointer),))


def _read_names(node: SchemaNode) -> Reading:
    return Reading(
        lambda: make_only(Object(names=(node.schema,), names_at=node.pointer)),
        lambda: [Object(some=(Some(True, node.pointer, misnamed=True),))],
    )


def _read_unique(pointer: str) -> Reading:
    return Reading(
        lambda: make_only(Array(unique=pointer)), lambda: [Array(low=2, repeating=pointer)]
    )
