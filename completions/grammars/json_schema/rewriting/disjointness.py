"""Whether the branches of a `oneOf` exclude each other, so that it is an `anyOf`."""

from itertools import combinations

from completions.grammars.json_schema.rewriting.keyword_readings import CircularError, Reader
from completions.grammars.json_schema.rewriting.schema_algebra import make_key
from completions.grammars.json_schema.rewriting.shapes import TooManyShapesError
from completions.grammars.schema.keywords import JSONSchema
from completions.grammars.schema.nodes import SchemaNode
from completions.regular.nfa import PatternError

MAX_PAIRS = 500
"""Pairs of branches that are compared in full."""
_LEVELS = 3
"""References followed in a row, and levels of properties."""


def are_disjoint(options: list[JSONSchema], reader: Reader) -> bool:
    """Return whether no value is an instance of two of them. False if that cannot be decided
    cheaply."""
    nodes = [reader.document.parse(option) for option in options]
    if len(nodes) < 2 or _are_distinguished(nodes):
        return True
    close = [
        (one.schema, other.schema)
        for one, other in combinations(nodes, 2)
        if not _are_different(one, other, _LEVELS)
    ]
    if len(close) > MAX_PAIRS:
        return False
    try:
        return not any(
            reader.meet(reader.read(one, ""), reader.read(other, "")) for one, other in close
        )
    except (TooManyShapesError, CircularError, PatternError):
        return False


def _are_distinguished(nodes: list[SchemaNode]) -> bool:
    """Return whether all are objects with a required property whose values differ in each."""
    followed = [_follow(node) for node in nodes]
    if not all(_list_types(node) == {"object"} for node in followed):
        return False
    for name in set.intersection(*(set(node.required) for node in followed)):
        value_sets = [_list_property(node, name) for node in followed]
        count = sum(len(values) for values in value_sets if values)
        if (
            all(value_sets)
            and len({value for values in value_sets for value in values or ()}) == count
        ):
            return True
    return False


def _list_property(node: SchemaNode, name: str) -> set[str] | None:
    """Return the values of a property, if they are listed."""
    inner = node.get_property(name)
    return _list_constants(_follow(inner)) if inner else None


def _are_different(one: SchemaNode, other: SchemaNode, levels: int) -> bool:
    """Return whether types, listed values, or required properties show that two schemas differ."""
    one, other = _follow(one), _follow(other)
    if one.is_empty or other.is_empty:
        return True
    types, values = _list_types(one), _list_constants(one)
    if types and (theirs := _list_types(other)) and not types & theirs:
        return True
    if values is not None and (other_values := _list_constants(other)) is not None:
        return not values & other_values
    if not levels or types != {"object"} or _list_types(other) != {"object"}:
        return False
    pairs = (
        (one.get_property(name), other.get_property(name))
        for name in {*one.required, *other.required}
    )
    return any(
        mine is not None and yours is not None and _are_different(mine, yours, levels - 1)
        for mine, yours in pairs
    )


def _follow(node: SchemaNode) -> SchemaNode:
    """Return the schema that references lead to; one without keywords after too many."""
    for _ in range(_LEVELS):
        if (target := node.target) is None:
            return node
        node = target
    return node if node.target is None else node.document.parse(True)


def _list_constants(node: SchemaNode) -> set[str] | None:
    return None if node.values is None else set(map(make_key, node.values))


def _list_types(node: SchemaNode) -> set[str]:
    """Return the types that a schema names, with number for integer; empty if it names none."""
    if node.values is not None:
        return node.value_types - {"integer"}
    return {"number" if name == "integer" else name for name in node.types}
