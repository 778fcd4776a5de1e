"""An object's properties in tags, whose own objects and lists are tags too."""

import json
from collections.abc import Iterator
from dataclasses import replace

from completions.grammars.json_schema.schema import Schema
from completions.grammars.schema.nodes import SchemaNode
from completions.grammars.structural_tag.literals import KINDS, Arguments, Literals
from completions.grammars.structural_tag.lowering import Lowering
from completions.grammars.structural_tag.parameters import Style
from completions.grammars.structural_tag.parts import SOME, Terminal, quote

_SCALARS = ("number", "integer", "boolean", "null")


class Elements(Arguments):
    """The parameters of one object schema. The rule of a value includes the beginning of the tag
    after it, where its text ends."""

    def __init__(self, schema: Schema, pointer: str, style: Style, lowering: Lowering) -> None:
        super().__init__(schema, pointer, Literals(style.name, "", "", ""), lowering)
        self._style = style
        self._name_end = style.closing.partition("{name}")[2]
        self._end = self._spell(style.value_end)

    def _write_member(self, name: str, node: SchemaNode) -> str:
        self._require_readable(name, node)
        begin = self._spell(self._style.before + name + self._style.opening)
        return f"{begin} {self._write_value(node)} {quote(name + self._name_end)}"

    def _write_other(self, node: SchemaNode, value: SchemaNode) -> str:
        name = self._make_undeclared(node)
        begin = self._name_terminal(f"{name} {quote(self._style.opening)}")
        end = self._name_terminal(f"{self._style.undeclared} {quote(self._name_end)}")
        return f"{self._spell(self._style.before)} {begin} {self._write_value(value)} {end}"

    def _write(self, leaf: SchemaNode) -> Iterator[str]:
        if leaf.values:
            self._expect(leaf, {"const", "enum", "type"})
            for value in leaf.values:
                text = "".join(self._style.write_value(value))
                yield self._spell(text + self._style.value_end)
            return
        kinds = leaf.types or list(KINDS)
        typed = leaf if "type" in leaf.keywords else replace(leaf, keywords={})
        if "string" in kinds:
            yield self._write_string(typed)
        if scalars := [kind for kind in kinds if kind in _SCALARS]:
            schema = self._schema.make_part(leaf, scalars)
            rule = self._add_rule(f"%json {json.dumps(schema, ensure_ascii=False)}")
            yield f"{rule} {self._end}"
        if "array" in kinds:
            yield f"{self._write_array(leaf)} {self._end}"
        if "object" in kinds:
            members, is_nullable = self._write_members(typed)
            inner = f"({members}){'?' if is_nullable else ''}" if members else ""
            yield f"{inner} {self._end}"

    def _write_array(self, leaf: SchemaNode) -> str:
        self._expect(leaf, {"type", "items", "minItems", "maxItems"})
        least, most = leaf.get("minItems", 0), leaf.get("maxItems")
        if most == 0 or not any(self._iter_leaves(leaf.rest)):
            return ""
        item = self._write_member(self._style.item, leaf.rest)
        return f"({item}){{{least},{'' if most is None else most}}}"

    def _write_string(self, leaf: SchemaNode) -> str:
        text = self._lower_text(leaf)
        assert isinstance(text, Terminal)
        if self._end != quote(self._style.value_end):  # it begins with a token
            inner = self._name_terminal(f"({text.expression}) & {SOME}")
            return f"({inner}){'?' if text.nullable else ''} {self._end}"
        return self._name_terminal(f"({text.expression}) {self._end}")
