"""Answers what a schema says of a value, without a validator's work: it is unchecked client input,
and may be large, lead back to itself, and say things that are not checked here."""

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from completions.grammars.schema.keywords import ANNOTATIONS, TYPES
from completions.grammars.schema.nodes import Document, SchemaNode, list_value_types

_MAX_PARTS = 1000
"""How many parts of a schema are read for one question."""
Path = tuple[str | None, ...]
"""The names that lead to a part of a value; None stands for any item of a list."""
Answer = frozenset[str]
"""What is possible. Answers of schemas that hold together intersect; options of a union add."""
ANY_KIND = Answer({*TYPES, "any"})
NO, MAYBE, YES = Answer(), Answer({"possible"}), Answer({"possible", "certain"})
"""Whether a value is an instance."""
_Question = Callable[[SchemaNode | None], Answer | None]
"""Returns what the keywords of one schema say, or of one that is not read; None for nothing."""
_BOUNDS = {
    "minimum": ("number", operator.ge),
    "exclusiveMinimum": ("number", operator.gt),
    "maximum": ("number", operator.le),
    "exclusiveMaximum": ("number", operator.lt),
    "minLength": ("string", operator.ge),
    "maxLength": ("string", operator.le),
    "minItems": ("array", operator.ge),
    "maxItems": ("array", operator.le),
}
"""Bounds on a number, or on the length of a value of another type."""
_OTHERS = "additionalProperties"
_DECIDED = {*_BOUNDS, *ANNOTATIONS, "type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"}
_DECIDED |= {"items", "properties", "required", _OTHERS}
"""Keywords that are checked; with any other, it is undecided whether a value is an instance."""


class SchemaQuestions:
    """Questions about one schema."""

    def __init__(self, schema: object) -> None:
        self._root = Document(schema).root
        self._left = 0

    def list_kinds(self, path: Path) -> Answer | None:
        """Return the types that a part of a value may have, :data:`ANY_KIND` if nothing excludes
        any; None if nothing is said of the part."""
        return self._start(_read_kinds, path)

    def check(self, value: object, path: Path) -> Answer:
        """Return whether a part of a value may be this one, as far as keywords are checked."""
        return self._start(partial(self._check, value), path) or NO

    def _start(self, question: _Question, path: Path) -> Answer | None:
        self._left = _MAX_PARTS
        try:
            return self._ask(question, self._root, path)
        except RecursionError:
            return question(None)

    def _ask(
        self, question: _Question, node: SchemaNode, path: Path = (), seen: Answer = NO
    ) -> Answer | None:
        """Return what a schema says of the part at a path. A reference is followed once on each
        way."""
        self._left -= 1
        if self._left < 0:
            return question(None)
        if path:
            declared = _list_declared(node, path[0])
            said = [_join(Answer.union, self._ask_each(question, declared, path[1:]))]
        else:
            said = [question(node)]
        said += self._ask_each(question, node.iter_schemas("allOf"), path, seen)
        if (target := node.target) is not None and target.pointer not in seen:
            said.append(self._ask(question, target, path, seen | {target.pointer}))
        for keyword in ("anyOf", "oneOf"):
            options = self._ask_each(question, node.iter_schemas(keyword), path, seen)
            said.append(_join(Answer.union, options))
        return _join(Answer.intersection, said)

    def _ask_each(
        self, question: _Question, nodes: Iterable[SchemaNode], path: Path, seen: Answer = NO
    ) -> Iterator[Answer | None]:
        for node in nodes:
            if self._left < 0:
                return
            yield self._ask(question, node, path, seen)

    def _check(self, value: object, node: SchemaNode | None) -> Answer:
        """Return whether a value is an instance by the keywords of one schema."""
        if node is None:
            return MAYBE
        if not _fits(value, node):
            return NO
        is_list = isinstance(value, list)
        answer = (
            YES if node.keywords.keys() <= _DECIDED and not (is_list and node.prefix) else MAYBE
        )
        for part, schema in _iter_parts(value, node):
            if self._left < 0:
                return answer & MAYBE
            answer &= self._ask(partial(self._check, part), schema) or NO
        return answer


def _join(combine: Callable[..., Answer], answers: Iterable[Answer | None]) -> Answer | None:
    said = [each for each in answers if each is not None]
    return combine(*said) if said else None


def _read_kinds(node: SchemaNode | None) -> Answer | None:
    """Return the types that one schema allows."""
    if node is None:
        return None
    kinds = Answer(node.types or node.value_types)
    return (kinds | {"integer"} if "number" in kinds else kinds) or ANY_KIND


def _list_declared(node: SchemaNode, name: str | None) -> list[SchemaNode]:
    """Return the schemas that a property, or an item, may have. Patterns are the client's, so they
    are not tried."""
    if name is None:
        return [*node.prefix, node.rest] if node.prefix or "items" in node.keywords else []
    if (declared := node.get_property(name)) is not None:
        return [declared]
    others = [node.get_schema(_OTHERS)] if _OTHERS in node.keywords else []
    return [*others, *(each for _, each in node.iter_named("patternProperties"))]


def _iter_parts(value: object, node: SchemaNode) -> Iterator[tuple[object, SchemaNode]]:
    """Yield the parts of a value, each with its schema."""
    if isinstance(value, list):
        yield from ((each, node.rest) for each in value)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield each, node.get_property(name) or node.get_schema(_OTHERS)


def _fits(value: object, node: SchemaNode) -> bool:
    """Return whether a value, whatever its parts are, is an instance."""
    kinds = list_value_types(value)
    if node.values is not None and not any(
        each == value and isinstance(each, bool) == isinstance(value, bool)
        for each in node.values  # JSON's true is not 1
    ):
        return False
    if node.types and kinds.isdisjoint(node.types):
        return False
    if isinstance(value, dict):
        return value.keys() >= set(node.required)
    size: Any = len(value) if isinstance(value, str | list) else value
    bounds = ((test, node.get(name)) for name, (kind, test) in _BOUNDS.items() if kind in kinds)
    return all(test(size, bound) for test, bound in bounds if bound is not None)
