"""A union of shapes as a schema of the keywords that llguidance enforces.

What has no such form is expanded into alternatives within limits, or refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from completions.grammars.json_schema.rewriting import counting, overlaps
from completions.grammars.json_schema.rewriting.refusals import CannotWriteError
from completions.grammars.json_schema.rewriting.schema_algebra import combine, make_key
from completions.grammars.json_schema.rewriting.shapes import (
    ALL,
    Array,
    Boolean,
    Null,
    Number,
    Object,
    Shape,
    String,
    Union,
    is_match,
)
from completions.grammars.schema.keywords import JSONSchema, SchemaObject
from completions.regular.dfa import ANY
from completions.regular.elimination import write_pattern

MAX_ENUM = 200
"""Integers that are written one by one."""
_NAMES: dict[type, str] = {
    Object: "object",
    Array: "array",
    String: "string",
    Number: "number",
    Boolean: "boolean",
    Null: "null",
}


@dataclass(slots=True)
class Writer:
    """Writer of unions of shapes. `read` and `is_possible` answer questions about names and
    values."""

    read: Callable[[JSONSchema], Union]
    is_possible: Callable[[Shape], bool]
    child: Callable[[JSONSchema], JSONSchema]
    """A schema inside a value, rewritten."""

    def write(self, union: Union) -> JSONSchema:
        """Raise CannotWriteError."""
        plain = [_NAMES[type(shape)] for shape in union if shape in ALL]
        if len(plain) == len(ALL):
            return True
        options: list[JSONSchema] = []
        if plain:
            options.append({"type": plain[0] if len(plain) == 1 else plain})
        for shape in union:
            if shape not in ALL:
                options += self._write_shape(shape)
        options = [node for node in options if node is not False]
        if not options:
            return False
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _write_shape(self, shape: Shape) -> list[JSONSchema]:
        if isinstance(shape, Null):
            return [{"type": "null"}]
        if isinstance(shape, Boolean):
            return [{"enum": list(shape.values)}]
        if isinstance(shape, Number):
            return _write_number(shape)
        if isinstance(shape, String):
            return [_write_string(shape)]
        if isinstance(shape, Array):
            expanded: Iterable[Any] = counting.expand_arrays(shape, self.read, self.is_possible)
            return [self._write_array(each) for each in expanded]
        if shape.names:
            shape = self._apply_names(shape)
        expanded = counting.expand_objects(shape, self.is_possible)
        return [self._write_object(each) for each in expanded]

    def _write_array(self, shape: Array | list[object]) -> JSONSchema:
        if isinstance(shape, list):
            return {"enum": shape} if shape else False
        schema: SchemaObject = {"type": "array"}
        rest = self.child(shape.rest)
        if shape.prefix:
            # This form of tuples is read in all drafts.
            schema["items"] = [self.child(node) for node in shape.prefix]
            schema["additionalItems"] = rest
        elif rest is not True:
            schema["items"] = rest
        if shape.low:
            schema["minItems"] = shape.low
        if shape.high is not None:
            schema["maxItems"] = shape.high
        return schema

    def _write_object(self, shape: Object) -> JSONSchema:
        schema: SchemaObject = {"type": "object"}
        if shape.properties:
            schema["properties"] = {
                name: self.child(node) for name, node in shape.properties.items()
            }
        if patterns := shape.patterns:
            if overlaps.have_common_names(patterns):
                patterns = overlaps.split(patterns)
            schema["patternProperties"] = {
                _exclude_properties(pattern, node, shape.properties): self.child(node)
                for pattern, node in patterns.items()
            }
        if (rest := self.child(shape.rest)) is not True:
            schema["additionalProperties"] = rest
        if shape.required:
            schema["required"] = list(shape.required)
        if shape.low > len(shape.required):
            schema["minProperties"] = shape.low
        if shape.high is not None:
            schema["maxProperties"] = shape.high
        return schema

    def _apply_names(self, shape: Object) -> Object:
        """Return the object without `propertyNames`: what it allows is declared, or has a
        pattern."""
        pointer = shape.names_at
        union: Union = [String()]
        for node in shape.names:
            union = [
                one & other
                for one in union
                for other in self.read(node)
                if isinstance(one, String) and isinstance(other, String)
            ]
        allowed = [each for each in union if isinstance(each, String)]
        bare = replace(shape, names=())
        properties = {
            name: node if any(each.accepts(name) for each in allowed) else False
            for name, node in shape.properties.items()
        }
        if all(each.values is not None for each in allowed):
            names = [text for each in allowed for text in each.list_texts()]
            properties |= {
                name: bare.get_property(name) for name in names if name not in properties
            }
            return replace(bare, properties=properties, patterns={}, rest=False)
        if shape.rest is False and not shape.patterns:
            return replace(bare, properties=properties)
        if shape.patterns:
            raise CannotWriteError(
                pointer,
                "propertyNames",
                "give it without patternProperties, or with names listed by an enum",
            )
        if len(allowed) == 1:
            patterns = {_make_name_pattern(allowed[0]): shape.rest}
        else:
            patterns, left = {}, ANY
            for each in allowed:
                patterns[write_pattern(each.language & left)] = shape.rest
                left &= each.language.complement()
        return replace(bare, properties=properties, patterns=patterns, rest=False)


def _exclude_properties(
    pattern: str, node: JSONSchema, properties: Mapping[str, JSONSchema]
) -> str:
    """Return the pattern without the declared names whose own schema does not include the
    pattern's."""
    others = [
        name
        for name, own in properties.items()
        if own is not False
        and is_match(pattern, name)
        and make_key(combine(own, node)) != make_key(own)
    ]
    return overlaps.exclude_names(pattern, others) if others else pattern


def _make_name_pattern(shape: String) -> str:
    if shape.patterns and len(shape.patterns) == 1 and shape == String(patterns=shape.patterns):
        return shape.patterns[0]
    if not shape.patterns and not shape.lacking and not shape.excluded:
        high = "" if shape.high is None else shape.high
        return f"^[\\s\\S]{{{shape.low},{high}}}$"
    return write_pattern(shape.language)


def _write_string(shape: String) -> JSONSchema:
    if shape.values is not None:
        texts = shape.list_texts()
        return {"enum": texts} if texts else False
    schema: SchemaObject = {"type": "string"}
    if shape.low:
        schema["minLength"] = shape.low
    if shape.high is not None:
        schema["maxLength"] = shape.high
    patterns = list(shape.patterns)
    if shape.lacking or shape.excluded:
        negative = replace(shape, low=0, high=None, patterns=())
        patterns.append(write_pattern(negative.language))
    if patterns:
        schema["pattern"] = patterns[0]
    if len(patterns) > 1:
        schema["allOf"] = [{"type": "string", "pattern": each} for each in patterns[1:]]
    return schema


def _write_number(shape: Number) -> list[JSONSchema]:
    is_one = shape.low is not None and shape.low == shape.high
    if shape.others or (shape.integer is False and is_one):
        return _list_values(shape)
    if shape.integer is False:
        advice = (
            "no grammar can exclude integers from numbers; allow both, or use type integer alone"
        )
        raise CannotWriteError("", "type", advice)
    inside = sorted(
        each
        for each in set(shape.excluded)
        if (shape.low is None or shape.low <= each) and (shape.high is None or each <= shape.high)
    )
    options = []
    for low, above, high, below in _iter_gaps(shape, inside):
        part = replace(shape, low=low, above=above, high=high, below=below, excluded=())
        if not part.is_empty():
            options.append(_write_range(part))
    return options


def _iter_gaps(
    shape: Number, points: list[float]
) -> Iterator[tuple[float | None, bool, float | None, bool]]:
    low, above = shape.low, shape.above
    for point in points:
        yield low, above, point, True
        low, above = point, True
    yield low, above, shape.high, shape.below


def _write_range(shape: Number) -> JSONSchema:
    if shape.low is not None and shape.low == shape.high:
        return {"const": shape.low}
    schema: SchemaObject = {"type": "integer" if shape.integer else "number"}
    if shape.low is not None:
        schema["exclusiveMinimum" if shape.above else "minimum"] = shape.low
    if shape.high is not None:
        schema["exclusiveMaximum" if shape.below else "maximum"] = shape.high
    if shape.multiples:
        schema["multipleOf"] = shape.multiples[0]
    if len(shape.multiples) > 1:
        schema["allOf"] = [{"multipleOf": each} for each in shape.multiples[1:]]
    return schema


def _list_values(shape: Number) -> list[JSONSchema]:
    """Return the integers one by one, where they are few."""
    low, high = shape.low, shape.high
    if low is None or high is None or (not shape.integer and low != high):
        advice = "to exclude multiples, give integers between a minimum and a maximum"
        raise CannotWriteError("", "multipleOf", advice)
    if high - low > MAX_ENUM:
        advice = f"to exclude multiples, give a range of at most {MAX_ENUM} integers"
        raise CannotWriteError("", "multipleOf", f"{advice}, not from {low} to {high}")
    numbers: list[float] = [low] if low == high else list(range(int(low) - 1, int(high) + 2))
    alone = [shape & Number(low=number, high=number) for number in numbers]
    values = [each.low for each in alone if each.low == each.high and not each.is_empty()]
    return [{"enum": values}] if values else []
