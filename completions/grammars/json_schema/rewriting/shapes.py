"""What a schema accepts, as a union of shapes: each is a set of constraints on values of one type.

Shapes of one type can be intersected; a union is a list of shapes. Schemas inside arrays and
objects stay JSON, and are read when they are needed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, cast

from completions.grammars.json_schema.rewriting import overlaps
from completions.grammars.json_schema.rewriting.schema_algebra import combine
from completions.grammars.patterns.language import build_network, compile_pattern
from completions.grammars.schema.keywords import JSONSchema
from completions.regular import dfa
from completions.regular.dfa import Dfa
from completions.regular.nfa import PatternError

MAX_UNION = 400


class TooManyShapesError(Exception):
    """The rewriting needs more shapes than MAX_UNION."""


@dataclass(frozen=True)
class Null:
    def __and__(self, other: "Null") -> "Null":
        return self


@dataclass(frozen=True)
class Boolean:
    values: tuple[bool, ...] = (False, True)

    def __and__(self, other: "Boolean") -> "Boolean":
        return Boolean(tuple(value for value in self.values if value in other.values))


@dataclass(frozen=True)
class Number:
    low: float | None = None
    high: float | None = None
    above: bool = False
    """Whether `low` itself is excluded, and `below` whether `high` is."""
    below: bool = False
    integer: bool | None = None
    """True for integers, False for other numbers, None for both."""
    multiples: tuple[float, ...] = ()
    excluded: tuple[float, ...] = ()
    others: tuple[float, ...] = ()
    """The number is a multiple of none of these."""

    def __and__(self, other: "Number") -> "Number":
        low, above = max((self.low, self.above), (other.low, other.above), key=_find_lowest)
        high, below = min((self.high, self.below), (other.high, other.below), key=_find_highest)
        kinds = {self.integer, other.integer} - {None}
        if len(kinds) == 2:
            return Number(low=1, high=0)
        return Number(
            low,
            high,
            above,
            below,
            kinds.pop() if kinds else None,
            _join(self.multiples, other.multiples),
            _join(self.excluded, other.excluded),
            _join(self.others, other.others),
        )

    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        if self.low == self.high:
            whole = float(self.low).is_integer()
            wrong_kind = self.integer is not None and self.integer is not whole
            missed = any(not _is_multiple(self.low, each) for each in self.multiples)
            hit = any(_is_multiple(self.low, each) for each in self.others)
            return (
                self.above or self.below or self.low in self.excluded or wrong_kind or missed or hit
            )
        return self.low > self.high


def _find_lowest(bound: tuple[float | None, bool]) -> tuple[float, bool]:
    return (-float("inf") if bound[0] is None else bound[0], bound[1])


def _find_highest(bound: tuple[float | None, bool]) -> tuple[float, bool]:
    return (float("inf") if bound[0] is None else bound[0], not bound[1])


def _is_multiple(value: float, of: float) -> bool:
    return not Decimal(str(value)) % Decimal(str(of))


def _join(one: tuple[object, ...], other: tuple[object, ...]) -> tuple[Any, ...]:
    return (*one, *(each for each in other if each not in one))


@dataclass(frozen=True)
class String:
    low: int = 0
    high: int | None = None
    values: tuple[str, ...] | None = None
    """The only texts, if they are listed."""
    excluded: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    """Patterns that are not found in the text."""

    def __and__(self, other: "String") -> "String":
        values = self.values
        if values is None:
            values = other.values
        elif other.values is not None:
            values = tuple(value for value in values if value in other.values)
        return String(
            max(self.low, other.low),
            _find_min(self.high, other.high),
            values,
            _join(self.excluded, other.excluded),
            _join(self.patterns, other.patterns),
            _join(self.lacking, other.lacking),
        )

    def is_empty(self) -> bool:
        if self.high is not None and self.low > self.high:
            return True
        if set(self.patterns) & set(self.lacking):
            return True
        try:
            if self.values is not None:
                return not self.list_texts()
            several = len(self.patterns) + len(self.lacking) > 1
            return several and self.language.is_empty
        except PatternError:
            return False

    def list_texts(self) -> list[str]:
        """Return the texts of a shape that lists them. Raises PatternError."""
        assert self.values is not None
        checks = [(build_network(each), True) for each in self.patterns]
        checks += [(build_network(each), False) for each in self.lacking]
        return [
            text
            for text in self.values
            if self.low <= len(text)
            and (self.high is None or len(text) <= self.high)
            and text not in self.excluded
            and all(machine.accepts(text) is is_member for machine, is_member in checks)
        ]

    def accepts(self, text: str) -> bool:
        return bool((self & String(values=(text,))).list_texts())

    @cached_property
    def language(self) -> Dfa:
        """Raises PatternError."""
        if self.values is not None:
            return dfa.from_literals(self.list_texts())
        automaton = dfa.ANY
        for pattern in self.patterns:
            automaton &= compile_pattern(pattern)
        for pattern in self.lacking:
            automaton &= compile_pattern(pattern).complement()
        if self.low or self.high is not None:
            automaton &= dfa.from_lengths(self.low, self.high)
        if self.excluded:
            automaton &= dfa.from_literals(self.excluded).complement()
        return automaton


@dataclass(frozen=True)
class Contains:
    """How many items are instances of a schema."""

    node: JSONSchema
    low: int
    high: int | None
    pointer: str


@dataclass(frozen=True)
class Array:
    prefix: tuple[JSONSchema, ...] = ()
    rest: JSONSchema = True
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: str | None = None
    """The pointer of a keyword that forbids equal items."""
    repeating: str | None = None
    """The pointer of a keyword that demands equal items."""

    def __and__(self, other: "Array") -> "Array":
        length = max(len(self.prefix), len(other.prefix))
        prefix = tuple(
            combine(self.get_item(index), other.get_item(index)) for index in range(length)
        )
        return Array(
            prefix,
            combine(self.rest, other.rest),
            max(self.low, other.low),
            _find_min(self.high, other.high),
            (*self.contains, *other.contains),
            self.unique or other.unique,
            self.repeating or other.repeating,
        )

    def get_item(self, index: int) -> JSONSchema:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def trim(self) -> "Array":
        """Return the same array, shortened before the first item that can have no value."""
        high = self.high
        for index in range(len(self.prefix) + 1):
            if self.get_item(index) is False and (high is None or high > index):
                high = index
        return self if high == self.high else replace(self, high=high)


@dataclass(frozen=True)
class Some:
    """A property with this name and value exists."""

    value: JSONSchema
    pointer: str
    except_names: tuple[str, ...] = ()
    except_patterns: tuple[str, ...] = ()
    pattern: str | None = None
    """A pattern found in its name."""
    misnamed: bool = False
    """Its name violates `propertyNames`."""


@dataclass(frozen=True)
class Object:
    properties: Mapping[str, JSONSchema] = field(default_factory=dict)
    patterns: Mapping[str, JSONSchema] = field(default_factory=dict)
    rest: JSONSchema = True
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: tuple[JSONSchema, ...] = ()
    """The schema of all names."""
    some: tuple[Some, ...] = ()
    counted: str = ""
    """The pointer of the keyword that counts properties."""
    names_at: str = ""
    """The pointer of `propertyNames`."""

    def __and__(self, other: "Object") -> "Object":
        """Raise PatternError."""
        properties = {
            name: combine(node, other.get_property(name)) for name, node in self.properties.items()
        }
        for name, node in other.properties.items():
            if name not in properties:
                properties[name] = combine(self.get_property(name), node)
        return Object(
            properties,
            overlaps.intersect(self.patterns, self.rest, other.patterns, other.rest),
            combine(self.rest, other.rest),
            _join(self.required, other.required),
            max(self.low, other.low),
            _find_min(self.high, other.high),
            (*self.names, *other.names),
            (*self.some, *other.some),
            self.counted or other.counted,
            self.names_at or other.names_at,
        )

    def get_property(self, name: str) -> JSONSchema:
        """Return the schema of the property with this name."""
        if name in self.properties:
            return self.properties[name]
        nodes = [node for pattern, node in self.patterns.items() if is_match(pattern, name)]
        result = nodes[0] if nodes else self.rest
        for node in nodes[1:]:
            result = combine(result, node)
        return result

    @property
    def is_closed(self) -> bool:
        return self.rest is False and all(node is False for node in self.patterns.values())


def is_match(pattern: str, name: str) -> bool:
    """Raise PatternError."""
    return build_network(pattern).accepts(name)


def _find_min(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


Shape = Null | Boolean | Number | String | Array | Object
Union = list[Shape]
ALL: tuple[Shape, ...] = (Object(), Array(), String(), Number(), Boolean(), Null())


def make_everything() -> Union:
    return list(ALL)


def make_only(*shapes: Shape) -> Union:
    """These shapes, and all values of the other types."""
    kinds = {type(shape) for shape in shapes}
    return [*shapes, *(shape for shape in ALL if type(shape) not in kinds)]


def meet(one: Union, other: Union, possible: Callable[[Shape], bool]) -> Union:
    """Return the intersection, without the shapes that are not possible. Raises
    TooManyShapesError."""
    shapes = [shape for shape in _iter_products(one, other) if possible(shape)]
    return simplify(shapes)


def _iter_products(one: Union, other: Union) -> Iterator[Shape]:
    for left in one:
        for right in other:
            if type(left) is not type(right):
                continue
            if left in ALL:
                yield right
            elif right in ALL:
                yield left
            else:
                # Of one type, as is checked above; a type checker cannot follow that.
                yield cast(Any, left) & right


def simplify(union: Union) -> Union:
    """Return the union without repetitions, and without shapes beside all values of their type."""
    whole = {type(shape) for shape in union if shape in ALL}
    # Not by equality, under which the schemas {"const": 1} and {"const": true} are the same.
    shapes = {repr(shape): shape for shape in union if shape in ALL or type(shape) not in whole}
    if len(shapes) > MAX_UNION:
        raise TooManyShapesError
    return list(shapes.values())
