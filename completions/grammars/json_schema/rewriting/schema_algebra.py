"""Schemas as JSON, combined and compared without a look at their references."""

import json
from collections.abc import Iterable
from typing import Any

Node = dict[str, Any] | bool
"""A JSON Schema."""


def key(value: Any) -> str:
    """Equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        # Sorted, since objects are equal in any order of their names.
        return {name: _plain(value[name]) for name in sorted(value)}
    return value


def values_of(node: Node) -> list[Any] | None:
    """The values of a schema that only lists values; None for any other schema."""
    if node is False:
        return []
    if isinstance(node, dict) and len(node) == 1:
        if "const" in node:
            return [node["const"]]
        if "enum" in node:
            return list(node["enum"])
    return None


def both(one: Node, other: Node) -> Node:
    """What both schemas accept."""
    if one is False or other is False:
        return False
    parts: dict[str, Node] = {}
    for part in (*_conjuncts(one), *_conjuncts(other)):
        parts.setdefault(written(part), part)
    found = list(parts.values())
    listed = [values for part in found if (values := values_of(part)) is not None]
    if len(listed) > 1:
        keys = set.intersection(*({key(value) for value in values} for values in listed))
        kept = [value for value in listed[0] if key(value) in keys]
        rest = [part for part in found if values_of(part) is None]
        found = [*([{"enum": kept}] if kept else [False]), *rest]
    if any(part is False for part in found):
        return False
    if not found:
        return True
    return found[0] if len(found) == 1 else {"allOf": found}


def _conjuncts(node: Node) -> Iterable[Node]:
    if node is True or node == {}:
        return ()
    if isinstance(node, dict) and node.keys() == {"allOf"}:
        return tuple(node["allOf"])
    return (node,)


def negated(node: Node) -> Node:
    """What the schema does not accept."""
    if isinstance(node, bool):
        return not node
    if not node:
        return False
    if node.keys() == {"not"}:
        inner: Node = node["not"]
        return inner
    return {"not": node}


def written(node: Node) -> str:
    """A key of a schema. Its order counts: it is the order in which properties are generated."""
    return json.dumps(node, separators=(",", ":"))
