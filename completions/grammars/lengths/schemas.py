"""A JSON Schema as an automaton that accepts all of its texts, and some more.

What a keyword demands beyond the shape of a text is left out, and a part of unknown shape may be
any text. So no text of the schema is shorter than the shortest one of the automaton.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from completions.grammars.lengths.graph import ANY, QUOTED, UNKNOWN, Graph
from completions.grammars.schema.nodes import Document, SchemaNode
from completions.regular import code_points
from completions.regular.code_points import Ranges

_MAX_REPEATED = 256
"""The most items or characters that are required one by one; a higher minimum counts as this
many."""
_DIGITS: Ranges = ((0x30, 0x39),)
_NUMBER = code_points.merge((*_DIGITS, *((byte, byte) for byte in b"-+.eE")))
_QUOTE: Ranges = ((0x22, 0x22),)
_BACKSLASH: Ranges = ((0x5C, 0x5C),)
_ASCII: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))
_CONTINUED: Ranges = ((0x80, 0xBF),)
"""Bytes inside a character of UTF-8."""
_LEADING: tuple[Ranges, ...] = (((0xC2, 0xDF),), ((0xE0, 0xEF),), ((0xF0, 0xF4),))
"""First bytes of characters of two, three and four bytes."""
_SPACES: Ranges = ((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20))
_LITERAL = re.compile(r"[ !#-\[\]-~]*")
"""Values that JSON writes in one way only."""


class SchemaGraph:
    """Builder of the automaton of one schema, as llguidance's grammar has it. Raises
    TooLargeError."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        options = schema.get("x-guidance") or {}
        self.graph = Graph()
        self._has_spaces = options.get("whitespace_flexible") is not False
        self._open: list[str] = []
        """The pointers of references that are being followed."""
        self.start = self.graph.add_state()
        self.end = self._add_value(self.start, Document(schema).root)

    def _add_value(self, at: int, node: SchemaNode) -> int:
        if (values := node.values) is not None:
            return self.graph.add_either(self._add_constant(at, value) for value in values)
        if (target := node.target) is not None:
            return self._add_target(at, target)
        if types := node.types:
            return self.graph.add_either(self._add_type(at, each, node) for each in types)
        if options := node.list_schemas("anyOf") or node.list_schemas("oneOf"):
            return self.graph.add_either(self._add_value(at, each) for each in options)
        return self._add_anything(at)

    def _add_target(self, at: int, target: SchemaNode) -> int:
        if target.pointer in self._open:
            return self._add_anything(at)
        self._open.append(target.pointer)
        end = self._add_value(at, target)
        self._open.pop()
        return end

    def _add_anything(self, at: int) -> int:
        loop = self.graph.add_some(self.graph.add_step(at, ANY), ANY)
        self.graph.loops[loop] = UNKNOWN
        return loop

    def _add_constant(self, at: int, value: object) -> int:
        if isinstance(value, list | dict | float):
            return self._add_anything(at)
        if isinstance(value, str):
            return self._add_text(at, value)
        return self.graph.add_literal(at, json.dumps(value).encode())

    def _add_text(self, at: int, text: str) -> int:
        if not _LITERAL.fullmatch(text):
            return self._add_string(at)
        return self.graph.add_literal(at, f'"{text}"'.encode())

    def _add_type(self, at: int, kind: str, node: SchemaNode) -> int:
        match kind:
            case "boolean":
                return self.graph.add_either(
                    self.graph.add_literal(at, b) for b in (b"true", b"false")
                )
            case "null":
                return self.graph.add_literal(at, b"null")
            case "integer" | "number":
                signed = self.graph.add_either([at, self.graph.add_literal(at, b"-")])
                return self.graph.add_some(self.graph.add_step(signed, _DIGITS), _NUMBER)
            case "string":
                return self._add_string(at, node.get("minLength", 0))
            case "array":
                return self._add_array(at, node)
            case "object":
                return self._add_object(at, node)
        return self._add_anything(at)

    def _add_string(self, at: int, min_length: int = 0) -> int:
        at = self.graph.add_step(at, _QUOTE)
        for _ in range(min(min_length, _MAX_REPEATED)):
            at = self._add_character(at)
        loop = self.graph.add_state()
        self.graph.add_jump(at, loop)
        self.graph.add_jump(self._add_character(loop), loop)
        self.graph.loops[loop] = QUOTED
        return self.graph.add_step(loop, _QUOTE)

    def _add_character(self, at: int) -> int:
        """Return a character; the digits of a numeric escape count as further characters."""
        end = self.graph.add_step(at, _ASCII)
        self.graph.add_step(self.graph.add_step(at, _BACKSLASH), ANY, end)
        for more, leading in enumerate(_LEADING):
            inside = self.graph.add_step(at, leading)
            for _ in range(more):
                inside = self.graph.add_step(inside, _CONTINUED)
            self.graph.add_step(inside, _CONTINUED, end)
        return end

    def _add_spaced(self, at: int, text: bytes) -> int:
        """Return a JSON punctuation mark with the white space that may surround it."""
        if not self._has_spaces:
            return self.graph.add_literal(at, text)
        return self.graph.add_some(
            self.graph.add_literal(self.graph.add_some(at, _SPACES), text), _SPACES
        )

    def _add_array(self, at: int, node: SchemaNode) -> int:
        if node.prefix:
            return self._add_anything(at)
        items, least = node.rest, node.get("minItems", 0)
        at = self._add_spaced(at, b"[")
        ends = [] if least else [at]
        for number in range(max(1, min(least, _MAX_REPEATED))):
            at = self._add_value(self._add_spaced(at, b",") if number else at, items)
        again = self.graph.add_state()
        self.graph.add_jump(at, again)
        if node.get("maxItems") != least:
            self.graph.add_jump(self._add_value(self._add_spaced(again, b","), items), again)
        return self._add_spaced(self.graph.add_either([*ends, again]), b"]")

    def _add_object(self, at: int, node: SchemaNode) -> int:
        """Add an object: declared properties in their order, then additional ones."""
        properties, required = node.properties, set(node.required)
        if "patternProperties" in node.keywords or not required <= properties.keys():
            return self._add_anything(at)
        empty, filled = self._add_spaced(at, b"{"), self.graph.add_state()
        """Where no property was written yet (unreachable as None), and where one was."""
        first: int | None = empty
        for name, inside in properties.items():
            after = [self._add_property(self._add_spaced(filled, b","), name, inside)]
            if first is not None:
                after.append(self._add_property(first, name, inside))
            if name in required:
                first = None
            else:
                after.append(filled)
            filled = self.graph.add_either(after)
        if node.get("additionalProperties") is not False:
            more = self.graph.add_state()
            self.graph.add_jump(self._add_property(self._add_spaced(filled, b",")), more)
            if first is not None:
                self.graph.add_jump(self._add_property(first), more)
            self.graph.add_jump(self._add_property(self._add_spaced(more, b",")), more)
            filled = self.graph.add_either([filled, more])
        ends = [filled] if first is None else [filled, first]
        return self._add_spaced(self.graph.add_either(ends), b"}")

    def _add_property(
        self, at: int, name: str | None = None, node: SchemaNode | None = None
    ) -> int:
        """Add a property with any name, or any value, where none is given."""
        at = self._add_string(at) if name is None else self._add_text(at, name)
        at = self._add_spaced(at, b":")
        return self._add_anything(at) if node is None else self._add_value(at, node)
