"""The counted fields of a shared JSON Schema, and the fields in which answers were cut off."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from completions.grammars import Constraint
from completions.grammars.schema.nodes import Document, SchemaNode
from completions.grammars.schema.pointers import escape
from completions.grammars.structural_tag import ANSWER
from completions.models.storable import replace_nul
from completions.responses.truncated_json import find_path_at_end

MAX_FIELDS = 64
"""The most fields of one schema that are counted: the first ones in its order."""
_MAX_VISITED = 2000
"""The most parts of a schema that are visited."""
_MAX_VALUES = 1000
"""The most values of an enum that are stored; with more, any scalar is counted."""
_EACH = "*"
"""The part of a pointer that stands for any array item."""
_BOOLEANS = ("true", "false")

CountedFields = Mapping[str, Any]
"""A tree of fields: children by name, `*` for array items. `counted` is a list of the JSON values
that are counted there, or true for any scalar."""


def find_schema(constraint: Constraint | None) -> Mapping[str, object] | None:
    """Return the JSON Schema that a whole answer must match, if the constraint is one."""
    if constraint is not None and constraint.field == ANSWER:  # of a chat completion
        inner = constraint.value["constraint"]
        constraint = Constraint(*inner) if inner else None
    kind, value = constraint.as_plain() if constraint else ("", None)
    if kind != "json_schema":
        return None
    schema = json.loads(value) if isinstance(value, str) else value
    return schema if isinstance(schema, dict) else None


class SharedSchema:
    """The schema of all lines, if they all have the same one."""

    def __init__(self) -> None:
        self._first: Mapping[str, object] | None = None
        self._seen = 0
        self._differ = False

    def see(self, schema: Mapping[str, object] | None) -> None:
        self._first = schema if not self._seen else self._first
        self._seen += 1
        self._differ = self._differ or schema != self._first

    @property
    def counted_fields(self) -> dict[str, object] | None:
        """The tree of the schema's fields; None without a schema or with several."""
        return None if self._differ or self._first is None else find_counted_fields(self._first)


def find_counted_fields(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the tree of those fields of a schema that are booleans or enums of scalars."""
    tree: dict[str, Any] = {}
    fields: dict[tuple[str, ...], dict[str, None]] = {}
    for path, values in _iter_fields(Document(schema).root):
        if path in fields or len(fields) < MAX_FIELDS:
            fields.setdefault(path, {}).update(dict.fromkeys(values))
    for path, several in fields.items():
        node = tree
        for name in path:
            node = node.setdefault("children", {}).setdefault(name, {})
        node["counted"] = list(several) if len(several) <= _MAX_VALUES else True
    return tree


def _iter_fields(root: SchemaNode) -> Iterator[tuple[tuple[str, ...], Iterable[str]]]:
    """Yield the paths of the fields, the shallow ones first, and the JSON values of each."""
    waiting: deque[tuple[SchemaNode, tuple[str, ...]]] = deque([(root, ())])
    for _ in range(_MAX_VISITED):  # a schema may refer to itself
        if not waiting:
            return
        node, path = waiting.popleft()
        enum, types = node.get("enum", ()), set(node.types)
        if enum and not any(map(_is_nested, enum)):
            yield path, map(_encode, enum)
        elif "boolean" in types and types <= {"boolean", "null"}:
            yield path, (*_BOOLEANS, *(["null"] if "null" in types else []))
        waiting.extend(islice(_iter_parts(node, path), _MAX_VISITED - len(waiting)))


def _iter_parts(
    node: SchemaNode, path: tuple[str, ...]
) -> Iterator[tuple[SchemaNode, tuple[str, ...]]]:
    """Yield the parts of a schema, each with the path of what it describes."""
    if (target := node.target) is not None and target.pointer:  # not the whole schema once more
        yield target, path
    for keyword in ("anyOf", "oneOf", "allOf"):
        yield from ((each, path) for each in node.iter_schemas(keyword))
    for name, each in node.iter_named("properties"):
        if "\0" not in name:  # PostgreSQL cannot store it
            yield each, (*path, name)
    if isinstance(node.keywords.get("items"), dict):
        yield node.rest, (*path, _EACH)


def _is_nested(value: object) -> bool:
    return isinstance(value, list | dict)


def read_counted_values(
    value: object, fields: CountedFields, pointer: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the pointer and the JSON value of each counted field of a document, or of the part of
    one at `pointer`."""
    counted = fields.get("counted")
    if counted and not _is_nested(value):
        text = _encode(value)
        if counted is True or text in counted:
            yield pointer, text
    children = fields.get("children", {})
    if isinstance(value, dict):
        for name, child in children.items():
            if name in value:
                yield from read_counted_values(value[name], child, f"{pointer}/{escape(name)}")
    elif isinstance(value, list) and _EACH in children:
        for each in value:
            yield from read_counted_values(each, children[_EACH], f"{pointer}/{_EACH}")


def _encode(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def find_truncated(text: str) -> str:
    """Return the pointer to the value in which truncated JSON ends; empty for the whole
    document."""
    names = (_EACH if isinstance(each, int) else escape(each) for each in find_path_at_end(text))
    pointer: str = replace_nul("".join(f"/{name}" for name in names))
    return pointer
