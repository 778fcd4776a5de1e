"""Converts an argument of a call that has no quotes around strings to JSON, by its schema."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from completions.chat.tools import dump
from completions.contract import strict_json
from completions.grammars.schema.keywords import ANNOTATIONS
from completions.grammars.schema.nodes import Document, SchemaNode, list_value_types

_MAX_DEPTH = 16
"""The deepest nesting of unions that is followed."""
_MAX_PARTS = 1000
"""How many parts of a schema are read for one argument, and how many values are compared with
parts. A schema may be large, and lead back to itself."""
Path = tuple[str | None, ...]
"""The names that lead to a part of a call's arguments; None stands for any item of a list."""
_EMPTY = {"array": "[]", "object": "{}", "null": "null"}
_BOUNDS = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}
_CHECKED = {*_BOUNDS, "type", "enum", "const", "minLength", "maxLength", "minItems", "maxItems"}
_INNER = {"items", "properties", "required", "additionalProperties"}
_DECIDED = {*_CHECKED, *_INNER, *ANNOTATIONS, "$ref", "anyOf", "oneOf", "allOf"}
"""Keywords that are checked; with any other, it is undecided whether a value is an instance."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    """Schemas that hold together, whose unions were followed."""

    nodes: Sequence[SchemaNode] = ()
    is_whole: bool = True
    """Whether all that they demand can be checked."""

    def list_kinds(self) -> set[str] | None:
        """Return the types that are allowed; None for all."""
        kinds: set[str] | None = None
        for node in self.nodes:
            if theirs := set(node.types) or node.value_types:
                theirs = theirs | {"integer"} if "number" in theirs else theirs
                kinds = theirs if kinds is None else kinds & theirs
        return kinds

    def list_declared(self, name: str | None) -> list[list[SchemaNode]]:
        """Return the schemas that a property, or an item, may have. Patterns are the client's, so
        they are not tried."""
        if name is None:
            lists = [node for node in self.nodes if node.prefix or "items" in node.keywords]
            return [[each] for node in lists for each in (*node.prefix, node.rest)]
        if declared := [each for node in self.nodes if (each := node.get_property(name))]:
            return [declared]
        keyword = "additionalProperties"
        others = [node.get_schema(keyword) for node in self.nodes if keyword in node.keywords]
        for node in self.nodes:
            others += (each for _, each in node.iter_named("patternProperties"))
        return [[each] for each in others]


class ArgumentTypes:
    """The types of a tool's arguments. Its schema is unchecked client input."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        self._root = Document(dict(schema)).root
        self._known: dict[Path, list[_Alternative]] = {}
        self._left = 0

    def is_string(self, path: Path) -> bool:
        """Return whether only strings are allowed, so that every text is one."""
        alternatives = self._list_alternatives(path)
        return bool(alternatives) and all(each.list_kinds() == {"string"} for each in alternatives)

    def allows(self, kind: str, path: Path) -> bool:
        """Return whether a type is allowed, or nothing is said of the argument."""
        kinds = [each.list_kinds() for each in self._list_alternatives(path)]
        return not kinds or any(each is None or kind in each for each in kinds)

    def find_empty(self, path: Path) -> str:
        """Return the JSON of an empty text where no string is allowed."""
        return next((text for kind, text in _EMPTY.items() if self.allows(kind, path)), "")

    def to_json(self, path: Path, text: str) -> str:
        """Return the JSON of an argument.

        A text that is valid JSON is read as a string only if the schema may allow this string and
        the value is not certainly an instance of the schema.
        """
        try:
            value = strict_json.loads(text)
        except strict_json.StrictJSONError:
            return dump(text)
        alternatives = self._list_alternatives(path)
        names_strings = any("string" in (each.list_kinds() or ()) for each in alternatives)
        self._left = _MAX_PARTS
        may_be_text = names_strings and any(
            all(self._is_valid(text, node) for node in each.nodes) for each in alternatives
        )
        if may_be_text and (isinstance(value, str) or not self._is_fit(value, alternatives)):
            return dump(text)
        return text.strip()

    def _list_alternatives(self, path: Path) -> list[_Alternative]:
        """Return the alternatives of an argument's schema, or of a part of the argument."""
        if path not in self._known:
            around = self._list_alternatives(path[:-1]) if path else []
            declared = [schemas for each in around for schemas in each.list_declared(path[-1])]
            self._left = _MAX_PARTS
            self._known[path] = [
                each
                for schemas in (declared if path else [[self._root]])
                for each in self._iter_alternatives(schemas)
            ]
        return self._known[path]

    def _iter_alternatives(
        self,
        schemas: Sequence[SchemaNode],
        beside: _Alternative = _Alternative(),
        seen: Set[str] = frozenset(),
        depth: int = 0,
    ) -> Iterator[_Alternative]:
        """Yield the schemas that references and unions lead to, each with those beside these. A
        reference is followed once on each way."""
        if depth > _MAX_DEPTH:
            yield replace(beside, is_whole=False)
            return
        nodes, is_whole = list(beside.nodes), beside.is_whole
        followed, waiting, unions = set(seen), list(schemas), list[Iterator[SchemaNode]]()
        while waiting:
            node = waiting.pop()
            self._left -= 1
            if self._left < 0:
                is_whole = False  # what was not read may exclude anything
                break
            if node.is_empty:
                return
            nodes.append(node)
            is_whole = is_whole and node.keywords.keys() <= _DECIDED
            waiting += islice(node.iter_schemas("allOf"), self._left + 1)
            if (target := node.target) is not None and target.pointer not in followed:
                followed.add(target.pointer)
                waiting.append(target)
            for keyword in ("anyOf", "oneOf"):
                if next(node.iter_schemas(keyword), None):
                    unions.append(node.iter_schemas(keyword))
        joined = _Alternative(nodes, is_whole and len(unions) < 2)
        if not unions:
            yield joined
            return
        for option in unions[0]:
            yield from self._iter_alternatives([option], joined, followed, depth + 1)

    def _is_fit(self, value: object, alternatives: Iterable[_Alternative]) -> bool:
        """Return whether a value is certainly an instance of one of the alternatives."""
        for each in alternatives:
            self._left -= len(each.nodes)
            if self._left < 0:
                return False
            with suppress(RecursionError):
                if each.is_whole and all(self._is_valid(value, node) for node in each.nodes):
                    return True
        return False

    def _is_valid(self, value: object, node: SchemaNode) -> bool:
        """Return whether a value is an instance of a schema, as far as keywords are checked."""
        if node.values is not None and not any(
            each == value and isinstance(each, bool) == isinstance(value, bool)
            for each in node.values  # JSON's true is not 1
        ):
            return False
        if node.types and list_value_types(value).isdisjoint(node.types):
            return False
        if isinstance(value, str):
            length = len(value)
            return bool(node.get("minLength", 0) <= length <= node.get("maxLength", length))
        if isinstance(value, list):
            return self._are_items_valid(value, node)
        if isinstance(value, dict):
            return self._are_properties_valid(value, node)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        bounds = ((test, node.get(name)) for name, test in _BOUNDS.items())
        return all(test(value, bound) for test, bound in bounds if bound is not None)

    def _are_items_valid(self, values: list[object], node: SchemaNode) -> bool:
        if not node.get("minItems", 0) <= len(values) <= node.get("maxItems", len(values)):
            return False
        alternatives = list(self._iter_alternatives([node.rest]))
        return not node.prefix and all(self._is_fit(value, alternatives) for value in values)

    def _are_properties_valid(self, values: dict[str, object], node: SchemaNode) -> bool:
        others = node.get_schema("additionalProperties")
        return values.keys() >= set(node.required) and all(
            self._is_fit(value, self._iter_alternatives([node.get_property(name) or others]))
            for name, value in values.items()
        )
