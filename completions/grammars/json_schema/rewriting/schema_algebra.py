"""Schemas as JSON, combined and compared without a look at their references."""

import json
from collections.abc import Iterable

from completions.grammars.schema.keywords import JSONSchema, SchemaObject

_NOT_STRINGS = ["null", "boolean", "number", "array", "object"]


def make_key(value: object) -> str:
    """Equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_to_plain(value), separators=(",", ":"))


def _to_plain(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, dict):
        # Sorted, since objects are equal in any order of their names.
        return {name: _to_plain(value[name]) for name in sorted(value)}
    return value


def list_values(node: JSONSchema) -> list[object] | None:
    """Return the values of a schema that only lists values; None for any other schema."""
    if node is False:
        return []
    if isinstance(node, dict) and len(node) == 1:
        if "const" in node:
            return [node["const"]]
        if "enum" in node:
            return list(node["enum"])
    return None


def combine(one: JSONSchema, other: JSONSchema) -> JSONSchema:
    """Return what both schemas accept."""
    if one is False or other is False:
        return False
    parts: dict[str, JSONSchema] = {}
    for part in (*_iter_conjuncts(one), *_iter_conjuncts(other)):
        parts.setdefault(serialize(part), part)
    nodes = list(parts.values())
    value_lists = [values for part in nodes if (values := list_values(part)) is not None]
    if len(value_lists) > 1:
        keys = set.intersection(*({make_key(value) for value in values} for values in value_lists))
        common = [value for value in value_lists[0] if make_key(value) in keys]
        rest = [part for part in nodes if list_values(part) is None]
        nodes = [*([{"enum": common}] if common else [False]), *rest]
    if any(part is False for part in nodes):
        return False
    if not nodes:
        return True
    return nodes[0] if len(nodes) == 1 else {"allOf": nodes}


def _iter_conjuncts(node: JSONSchema) -> Iterable[JSONSchema]:
    if node is True or node == {}:
        return ()
    if isinstance(node, dict) and node.keys() == {"allOf"}:
        return tuple(node["allOf"])
    return (node,)


def negate(node: JSONSchema) -> JSONSchema:
    """Return what the schema does not accept."""
    if isinstance(node, bool):
        return not node
    if not node:
        return False
    if node.keys() == {"not"}:
        inner: JSONSchema = node["not"]
        return inner
    return {"not": node}


def restrict_texts(schema: SchemaObject, pattern: str) -> SchemaObject:
    """Return a schema with a pattern that restricts only strings, to hold beside another schema."""
    text = {"type": "string", "pattern": pattern}
    return text if schema.get("type") == "string" else {"anyOf": [text, {"type": _NOT_STRINGS}]}


def serialize(node: JSONSchema) -> str:
    """Return a key of a schema. Its order counts: it is the order in which properties are
    generated."""
    return json.dumps(node, separators=(",", ":"))
