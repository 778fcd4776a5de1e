"""JSON Schemas as typed nodes. A schema may be unchecked: what has a wrong shape says nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from completions.grammars.schema.keywords import KEYWORDS, JSONSchema, SchemaObject
from completions.grammars.schema.pointers import escape, get

_TYPES = {str: "string", list: "array", dict: "object", type(None): "null", bool: "boolean"}


class Document:
    """A whole JSON Schema, in which references are followed."""

    def __init__(self, schema: object) -> None:
        self.root = self.parse(schema)
        self.targets: dict[str, SchemaNode] = {}
        """Where each reference that was followed leads; the same place if the schema is changed."""

    def parse(self, schema: object, pointer: str = "") -> "SchemaNode":
        """Return a schema whose references lead into the document."""
        if isinstance(schema, dict):
            return SchemaNode(self, pointer, schema, schema)
        if schema is False:
            return SchemaNode(self, pointer, False, {"enum": []})
        return SchemaNode(self, pointer, True, {})

    def resolve(self, reference: str) -> "SchemaNode | None":
        """Return the schema that a reference to a pointer or an anchor leads to, if any."""
        if reference not in self.targets and reference.startswith("#"):
            name = unquote(reference[1:])
            if name and not name.startswith("/"):
                target = self._anchors.get(name)
            else:
                value = get(self.root.keywords, name)
                target = self.parse(value, name) if isinstance(value, dict | bool) else None
            if target is not None:
                self.targets[reference] = target
        return self.targets.get(reference)

    @cached_property
    def _anchors(self) -> "dict[str, SchemaNode]":
        """The schemas that have a name. In a value such as one of `enum`, `$anchor` is data."""
        anchors: dict[str, SchemaNode] = {}
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if isinstance(name := node.keywords.get("$anchor"), str):
                anchors[name] = node
            waiting += node.parts
            if "contentSchema" in node.keywords:
                waiting.append(node.get_schema("contentSchema"))
            for keyword in ("$defs", "definitions"):
                waiting += (inner for _, inner in node.iter_named(keyword))
        return anchors


@dataclass(slots=True, eq=False)
class SchemaNode:
    """One schema of a document."""

    document: Document
    pointer: str
    schema: JSONSchema
    keywords: SchemaObject
    """Those of the schema: `true` has none, `false` is an `enum` without values."""

    def get(self, keyword: str, default: object = None) -> Any:
        """Return the value of a keyword; the default if it is absent or of a wrong shape."""
        if keyword not in self.keywords:
            return default
        value = self.keywords[keyword]
        return value if KEYWORDS[keyword].shape.fits(value) else default

    def get_schema(self, keyword: str) -> "SchemaNode":
        """Return the schema that a keyword holds; `true` without one."""
        return self._enter(keyword, self.keywords.get(keyword))

    def iter_schemas(self, keyword: str) -> "Iterator[SchemaNode]":
        """Yield the schemas that a keyword holds in an array."""
        value = self.keywords.get(keyword)
        for index, each in enumerate(value if isinstance(value, list) else ()):
            yield self._enter(f"{keyword}/{index}", each)

    def list_schemas(self, keyword: str) -> "list[SchemaNode]":
        return list(self.iter_schemas(keyword))

    def iter_named(self, keyword: str) -> "Iterator[tuple[str, SchemaNode]]":
        """Yield the names and the schemas that a keyword holds in an object."""
        value = self.keywords.get(keyword)
        for name, each in value.items() if isinstance(value, dict) else ():
            yield name, self._enter(f"{keyword}/{escape(name)}", each)

    def get_property(self, name: str) -> "SchemaNode | None":
        """Return the schema that `properties` declares for a name."""
        properties = self.keywords.get("properties")
        if not isinstance(properties, dict) or name not in properties:
            return None
        return self._enter(f"properties/{escape(name)}", properties[name])

    def _enter(self, path: str, value: object) -> "SchemaNode":
        return self.document.parse(value, f"{self.pointer}/{path}")

    @property
    def types(self) -> list[str]:
        """The types that `type` names."""
        names = self.keywords.get("type")
        names = [names] if isinstance(names, str) else names
        return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []

    @property
    def values(self) -> list[object] | None:
        """The values that `const` or `enum` lists; None if neither does."""
        if "const" in self.keywords:
            return [self.keywords["const"]]
        values = self.keywords.get("enum")
        return values if isinstance(values, list) else None

    @property
    def is_empty(self) -> bool:
        """Whether no value is an instance, as of `false`."""
        return self.values == []

    @property
    def value_types(self) -> set[str]:
        """The types of the values that are listed."""
        return {name for value in self.values or () for name in list_value_types(value)}

    @property
    def target(self) -> "SchemaNode | None":
        """The schema that `$ref` leads to."""
        reference = self.keywords.get("$ref")
        return self.document.resolve(reference) if isinstance(reference, str) else None

    @property
    def properties(self) -> "dict[str, SchemaNode]":
        return dict(self.iter_named("properties"))

    @property
    def required(self) -> list[str]:
        return list(self.get("required", ()))

    @property
    def prefix(self) -> "list[SchemaNode]":
        """The schemas of the first items."""
        return self.list_schemas("items" if self._has_item_list else "prefixItems")

    @property
    def rest(self) -> "SchemaNode":
        """The schema of the items after those of `prefix`."""
        return self.get_schema("additionalItems" if self._has_item_list else "items")

    @property
    def _has_item_list(self) -> bool:
        return isinstance(self.keywords.get("items"), list)

    @property
    def parts(self) -> "Iterator[SchemaNode]":
        """The schemas that the enforced keywords hold, except `true` and `false`."""
        for name, value in self.keywords.items():
            keyword = KEYWORDS.get(name)
            if keyword is None or not keyword.shape.has_schemas:
                continue
            if isinstance(value, list):
                nodes = self.list_schemas(name)
            elif keyword.shape.has_names:
                nodes = [node for _, node in self.iter_named(name)]
            else:
                nodes = [self.get_schema(name)]
            yield from (node for node in nodes if node.schema is node.keywords)

    def iter_patterns(self) -> Iterator[tuple[str, str]]:
        """Yield the patterns of texts and of names, each with its path."""
        if (pattern := self.get("pattern")) is not None:
            yield "pattern", pattern
        for name in self.get("patternProperties", ()):
            yield f"patternProperties/{escape(name)}", name


def list_value_types(value: object) -> set[str]:
    """Return the types of a value: an integer is a number, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {_TYPES[type(value)]}
    return {"number", "integer"} if isinstance(value, int) or value.is_integer() else {"number"}
