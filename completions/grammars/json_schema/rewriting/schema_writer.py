"""A union of shapes as a schema of the keywords that llguidance enforces.

What has no such form is expanded into alternatives within limits, or refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from completions.grammars.json_schema.rewriting import counting, overlaps, pattern_writer
from completions.grammars.json_schema.rewriting.automata import ANY
from completions.grammars.json_schema.rewriting.refusals import CannotWriteError
from completions.grammars.json_schema.rewriting.schema_algebra import Node, both, key
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
    matches,
)

MAX_LISTED = 200
"""Integers that are written one by one."""
_NAMES: dict[type, str] = {
    Object: "object", Array: "array", String: "string", Number: "number", Boolean: "boolean",
    Null: "null",
}  # fmt: skip


@dataclass(slots=True)
class Writer:
    """Writes unions of shapes. `read` and `is_possible` answer questions about names and values."""

    read: Callable[[Node], Union]
    is_possible: Callable[[Shape], bool]
    child: Callable[[Node], Node]
    """A schema inside a value, rewritten."""

    def write(self, union: Union) -> Node:
        """Raises CannotWriteError."""
        plain = [_NAMES[type(shape)] for shape in union if shape in ALL]
        if len(plain) == len(ALL):
            return True
        found: list[Node] = []
        if plain:
            found.append({"type": plain[0] if len(plain) == 1 else plain})
        for shape in union:
            if shape not in ALL:
                found += self._shape(shape)
        found = [node for node in found if node is not False]
        if not found:
            return False
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _shape(self, shape: Shape) -> list[Node]:
        if isinstance(shape, Null):
            return [{"type": "null"}]
        if isinstance(shape, Boolean):
            return [{"enum": list(shape.values)}]
        if isinstance(shape, Number):
            return _number(shape)
        if isinstance(shape, String):
            return [_string(shape)]
        if isinstance(shape, Array):
            expanded: Iterable[Any] = counting.arrays(shape, self.read, self.is_possible)
            return [self._array(each) for each in expanded]
        if shape.names:
            shape = self._with_names(shape)
        expanded = counting.objects(shape, self.is_possible)
        return [self._object(each) for each in expanded]

    def _array(self, shape: Array | list[Any]) -> Node:
        if isinstance(shape, list):
            return {"enum": shape} if shape else False
        written: dict[str, Any] = {"type": "array"}
        rest = self.child(shape.rest)
        if shape.prefix:
            # This form of tuples is read in all drafts.
            written["items"] = [self.child(node) for node in shape.prefix]
            written["additionalItems"] = rest
        elif rest is not True:
            written["items"] = rest
        if shape.low:
            written["minItems"] = shape.low
        if shape.high is not None:
            written["maxItems"] = shape.high
        return written

    def _object(self, shape: Object) -> Node:
        written: dict[str, Any] = {"type": "object"}
        if shape.properties:
            written["properties"] = {
                name: self.child(node) for name, node in shape.properties.items()
            }
        if patterns := shape.patterns:
            if overlaps.share_names(patterns):
                patterns = overlaps.split(patterns)
            written["patternProperties"] = {
                _of_others(pattern, node, shape.properties): self.child(node)
                for pattern, node in patterns.items()
            }
        if (rest := self.child(shape.rest)) is not True:
            written["additionalProperties"] = rest
        if shape.required:
            written["required"] = list(shape.required)
        if shape.low > len(shape.required):
            written["minProperties"] = shape.low
        if shape.high is not None:
            written["maxProperties"] = shape.high
        return written

    def _with_names(self, shape: Object) -> Object:
        """The object without `propertyNames`: what it allows is declared, or has a pattern."""
        pointer = shape.names_at
        union: Union = [String()]
        for node in shape.names:
            union = [
                one & other for one in union for other in self.read(node)
                if isinstance(one, String) and isinstance(other, String)
            ]  # fmt: skip
        allowed = [each for each in union if isinstance(each, String)]
        bare = replace(shape, names=())
        properties = {
            name: node if any(each.accepts(name) for each in allowed) else False
            for name, node in shape.properties.items()
        }
        if all(each.values is not None for each in allowed):
            listed = [text for each in allowed for text in each.texts()]
            properties |= {name: bare.named(name) for name in listed if name not in properties}
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
            patterns = {_name_pattern(allowed[0]): shape.rest}
        else:
            patterns, left = {}, ANY
            for each in allowed:
                patterns[pattern_writer.written(each.language & left)] = shape.rest
                left &= each.language.complement()
        return replace(bare, properties=properties, patterns=patterns, rest=False)


def _of_others(pattern: str, node: Node, properties: Mapping[str, Node]) -> str:
    """The pattern without the declared names whose own schema does not include the pattern's."""
    others = [
        name for name, own in properties.items()
        if own is not False and matches(pattern, name) and key(both(own, node)) != key(own)
    ]  # fmt: skip
    return overlaps.without(pattern, others) if others else pattern


def _name_pattern(shape: String) -> str:
    if shape.patterns and len(shape.patterns) == 1 and shape == String(patterns=shape.patterns):
        return shape.patterns[0]
    if not shape.patterns and not shape.lacking and not shape.excluded:
        high = "" if shape.high is None else shape.high
        return f"^[\\s\\S]{{{shape.low},{high}}}$"
    return pattern_writer.written(shape.language)


def _string(shape: String) -> Node:
    if shape.values is not None:
        texts = shape.texts()
        return {"enum": texts} if texts else False
    written: dict[str, Any] = {"type": "string"}
    if shape.low:
        written["minLength"] = shape.low
    if shape.high is not None:
        written["maxLength"] = shape.high
    patterns = list(shape.patterns)
    if shape.lacking or shape.excluded:
        negative = replace(shape, low=0, high=None, patterns=())
        patterns.append(pattern_writer.written(negative.language))
    if patterns:
        written["pattern"] = patterns[0]
    if len(patterns) > 1:
        written["allOf"] = [{"type": "string", "pattern": each} for each in patterns[1:]]
    return written


def _number(shape: Number) -> list[Node]:
    is_one = shape.low is not None and shape.low == shape.high
    if shape.others or (shape.integer is False and is_one):
        return _listed(shape)
    if shape.integer is False:
        advice = (
            "no grammar can exclude integers from numbers; allow both, or use type integer alone"
        )
        raise CannotWriteError("", "type", advice)
    inside = sorted(
        each for each in set(shape.excluded)
        if (shape.low is None or shape.low <= each) and (shape.high is None or each <= shape.high)
    )  # fmt: skip
    found = []
    for low, above, high, below in _gaps(shape, inside):
        part = replace(shape, low=low, above=above, high=high, below=below, excluded=())
        if not part.is_empty():
            found.append(_range(part))
    return found


def _gaps(
    shape: Number, points: list[float]
) -> Iterator[tuple[float | None, bool, float | None, bool]]:
    low, above = shape.low, shape.above
    for point in points:
        yield low, above, point, True
        low, above = point, True
    yield low, above, shape.high, shape.below


def _range(shape: Number) -> Node:
    if shape.low is not None and shape.low == shape.high:
        return {"const": shape.low}
    written: dict[str, Any] = {"type": "integer" if shape.integer else "number"}
    if shape.low is not None:
        written["exclusiveMinimum" if shape.above else "minimum"] = shape.low
    if shape.high is not None:
        written["exclusiveMaximum" if shape.below else "maximum"] = shape.high
    if shape.multiples:
        written["multipleOf"] = shape.multiples[0]
    if len(shape.multiples) > 1:
        written["allOf"] = [{"multipleOf": each} for each in shape.multiples[1:]]
    return written


def _listed(shape: Number) -> list[Node]:
    """Integers one by one, where they are few."""
    low, high = shape.low, shape.high
    if low is None or high is None or (not shape.integer and low != high):
        advice = "to exclude multiples, give integers between a minimum and a maximum"
        raise CannotWriteError("", "multipleOf", advice)
    if high - low > MAX_LISTED:
        advice = f"to exclude multiples, give a range of at most {MAX_LISTED} integers"
        raise CannotWriteError("", "multipleOf", f"{advice}, not from {low} to {high}")
    numbers: list[float] = [low] if low == high else list(range(int(low) - 1, int(high) + 2))
    alone = [shape & Number(low=number, high=number) for number in numbers]
    kept = [each.low for each in alone if each.low == each.high and not each.is_empty()]
    return [{"enum": kept}] if kept else []
