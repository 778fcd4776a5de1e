"""Whether the branches of a `oneOf` exclude each other, so that it is an `anyOf`."""

from itertools import combinations
from typing import Any

from completions.grammars.json_schema.nodes import list_types, list_value_types, list_values
from completions.grammars.json_schema.rewriting.keyword_readings import CircularError, Reader
from completions.grammars.json_schema.rewriting.schema_algebra import Node, make_key
from completions.grammars.json_schema.rewriting.shapes import TooManyShapesError
from completions.regular.nfa import PatternError

MAX_PAIRS = 500
"""Pairs of branches that are compared in full."""
_LEVELS = 3
"""References followed in a row, and levels of properties."""


def are_disjoint(options: list[Node], reader: Reader) -> bool:
    """Return whether no value is an instance of two of them. False if that cannot be decided
    cheaply."""
    if len(options) < 2 or _are_distinguished(options, reader):
        return True
    close = [
        (one, other)
        for one, other in combinations(options, 2)
        if not _are_different(one, other, reader, _LEVELS)
    ]
    if len(close) > MAX_PAIRS:
        return False
    try:
        return not any(
            reader.meet(reader.read(one, ""), reader.read(other, "")) for one, other in close
        )
    except (TooManyShapesError, CircularError, PatternError):
        return False


def _are_distinguished(options: list[Node], reader: Reader) -> bool:
    """Return whether all are objects with a required property whose values differ in each."""
    followed = [_follow(option, reader) for option in options]
    if not all(isinstance(node, dict) and _list_types(node) == {"object"} for node in followed):
        return False
    common = set.intersection(*(set(node.get("required", ())) for node in followed))
    for name in common:
        value_sets = [_list_property(node, name, reader) for node in followed]
        count = sum(len(values) for values in value_sets if values)
        if (
            all(value_sets)
            and len({value for values in value_sets for value in values or ()}) == count
        ):
            return True
    return False


def _list_property(node: dict[str, Any], name: str, reader: Reader) -> set[str] | None:
    """Return the values of a property, if they are listed."""
    inner = _follow(node.get("properties", {}).get(name, True), reader)
    return _list_constants(inner) if isinstance(inner, dict) else None


def _are_different(one: Node, other: Node, reader: Reader, levels: int) -> bool:
    """Return whether types, listed values, or required properties show that two schemas differ."""
    one, other = _follow(one, reader), _follow(other, reader)
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one is False or other is False
    types, values = _list_types(one), _list_constants(one)
    if types and (theirs := _list_types(other)) and not types & theirs:
        return True
    if values is not None and (other_values := _list_constants(other)) is not None:
        return not values & other_values
    if not levels or types != {"object"} or _list_types(other) != {"object"}:
        return False
    mine, yours = one.get("properties", {}), other.get("properties", {})
    return any(
        name in mine
        and name in yours
        and _are_different(mine[name], yours[name], reader, levels - 1)
        for name in {*one.get("required", ()), *other.get("required", ())}
    )


def _follow(node: Node, reader: Reader) -> Any:
    for _ in range(_LEVELS):
        if not isinstance(node, dict) or "$ref" not in node:
            return node
        target = reader.resolve(node["$ref"])
        if target is None:
            return {}
        node = target[1]
    return {} if isinstance(node, dict) and "$ref" in node else node


def _list_constants(node: dict[str, Any]) -> set[str] | None:
    values = list_values(node)
    return None if values is None else set(map(make_key, values))


def _list_types(node: dict[str, Any]) -> set[str]:
    """Return the types that a schema names, with number for integer; empty if it names none."""
    values = list_values(node)
    if values is not None:
        return {name for value in values for name in list_value_types(value)} - {"integer"}
    return {"number" if name == "integer" else name for name in list_types(node)}
