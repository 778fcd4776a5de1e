"""An object's properties as named arguments, in the literals of a language other than JSON."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from completions.grammars import tokens
from completions.grammars.json_schema.schema import Schema, dump
from completions.grammars.schema.keywords import ANNOTATIONS
from completions.grammars.schema.nodes import SchemaNode
from completions.grammars.structural_tag.lowering import Lowering
from completions.grammars.structural_tag.parameters import Parameters, Style
from completions.grammars.structural_tag.parts import (
    ANY,
    EMPTY,
    SOME,
    Chain,
    Loop,
    OneToken,
    Opaque,
    Part,
    Terminal,
    quote,
)

JSON_QUOTE = '"'
KINDS = ("string", "number", "boolean", "null", "array", "object")

_PLAIN_NAME = re.compile(r"[A-Za-z_$@][A-Za-z0-9_.$@-]*")


@dataclass(frozen=True, slots=True)
class Literals:
    """How arguments and their values are written.

    If the quote is JSON's, strings, lists and objects are JSON. Otherwise strings are bare between
    quotes, and the keys of objects are bare.
    """

    name: str
    assign: str
    """The text between a name and its value."""
    separator: str
    quote: str
    constants: tuple[str, str, str] = ("true", "false", "null")
    string: str = ""
    """A terminal for strings in other quotes, where the schema bounds none."""

    @property
    def texts(self) -> list[str]:
        """The texts around values."""
        return [self.quote]

    @property
    def has_json(self) -> bool:
        """Whether strings are JSON."""
        return self.quote == JSON_QUOTE

    def write(self, value: Any) -> str:
        """Return a value as a model writes it."""
        if value is None or isinstance(value, bool):
            return self.constants[2 if value is None else not value]
        if self.quote == JSON_QUOTE or isinstance(value, int | float):
            return dump(value)
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, list):
            return f"[{self.separator.join(map(self.write, value))}]"
        return f"{{{self.write_members(value)}}}"

    def write_name(self, name: str) -> str:
        """Return a name; in quotes if it has what ends a bare one."""
        return name if _PLAIN_NAME.fullmatch(name) else self.write(name)

    def write_members(self, values: Mapping[str, object]) -> str:
        """Return names with their values."""
        members = (
            f"{self.write_name(name)}{self.assign}{self.write(value)}"
            for name, value in values.items()
        )
        return self.separator.join(members)


_SINGLE_QUOTED = r"""/'([^'\\\r\n]|\\['"\\nrt])*'/"""
PYTHON = Literals("python", "=", ", ", JSON_QUOTE, ("True", "False", "None"), _SINGLE_QUOTED)


class Arguments(Parameters):
    """The arguments of one object schema, as rules of their own, which may lead back to
    themselves."""

    def __init__(
        self, schema: Schema, pointer: str, literals: Literals, lowering: Lowering
    ) -> None:
        style = Style(literals.name, "", literals.assign, literals.quote)
        super().__init__(schema, pointer, style, lowering)
        self._literals = literals
        self._all_rules = lowering.rules
        self._number = lowering.num_arguments
        lowering.num_arguments += 1
        self._rules: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._terminals: dict[str, str] = {}

    def lower(self) -> Part:
        root = self._follow(self._schema.survey.document.root)
        members, is_nullable = self._write_members(root)
        if not members:
            return EMPTY
        name = f"arguments_{self._number}"
        self._all_rules.append(f"{name}: {members}")
        self._all_rules += (f"{name}: {rule}" for name, rule in self._rules.items())
        self._all_rules += (f"{name}: {text}" for text, name in self._terminals.items())
        part = Opaque(name, ANY)
        return Loop(part, 0, 1) if is_nullable else part

    def _write_members(self, node: SchemaNode) -> tuple[str, bool]:
        """Return the rule of at least one member, empty for none, and whether there may be none."""
        properties, required, more = self._read_object(node)
        separator = quote(self._literals.separator)
        members = [
            (self._write_member(name, each), name in required) for name, each in properties.items()
        ]
        tail, extra = '""', ""
        if more is not None:
            extra = self._write_other(node, more)
            tail = self._add_rule(f"({separator} {extra})*")
        ways = [f"{extra} {tail}"] if extra else []
        for member, is_required in reversed(members):
            ways = [f"{member} {tail}", *([] if is_required else ways)]
            following = f"{separator} {member}"
            tail = self._add_rule(f"{following if is_required else f'({following})?'} {tail}")
        return " | ".join(ways), not required

    def _write_member(self, name: str, node: SchemaNode) -> str:
        begin = self._spell(self._literals.write_name(name) + self._literals.assign)
        return f"{begin} {self._write_value(node)}"

    def _write_other(self, node: SchemaNode, value: SchemaNode) -> str:
        """Return a member that an object does not declare."""
        name = f"({self._make_undeclared(node)}) {quote(self._literals.assign)}"
        return f"{self._name_terminal(name)} {self._write_value(value)}"

    def _write_value(self, node: SchemaNode) -> str:
        """Return the name of the rule for a value."""
        node = self._follow(node)
        key = node.pointer if node.keywords.keys() - ANNOTATIONS else "any"
        if key not in self._known:
            name = self._known[key] = self._add_rule("")
            options = [each for leaf in self._iter_leaves(node) for each in self._write(leaf)]
            self._rules[name] = " | ".join(options)
        return self._known[key]

    def _write(self, leaf: SchemaNode) -> Iterator[str]:
        """Yield the ways to write a value without unions."""
        if leaf.values:
            self._expect(leaf, {"const", "enum", "type"})
            yield from (self._spell(self._literals.write(value)) for value in leaf.values)
            return
        kinds, is_json = leaf.types or list(KINDS), self._literals.quote == JSON_QUOTE
        constants = self._literals.constants
        if "boolean" in kinds:
            yield " | ".join(map(quote, constants[:2]))
        if "null" in kinds:
            yield quote(constants[2])
        as_json = {"number", "integer", *(("string", "array", "object") if is_json else ())}
        if rest := [kind for kind in kinds if kind in as_json]:
            part = self._schema.make_part(leaf, rest)
            yield self._add_rule(f"%json {json.dumps(part, ensure_ascii=False)}")
        is_bounded = bool(leaf.keywords.keys() - ANNOTATIONS - {"type"})
        if self._literals.string and "string" in kinds and not is_bounded:
            yield self._name_terminal(self._literals.string)
        if is_json:
            return
        typed = leaf if "type" in leaf.keywords else replace(leaf, keywords={})
        if "string" in kinds:
            yield self._write_string(typed)
        if "array" in kinds:
            yield self._write_array(leaf)
        if "object" in kinds:
            members, is_nullable = self._write_members(typed)
            inner = f"({members})" if members else '""'
            yield f'"{{" {inner}{"?" if members and is_nullable else ""} "}}"'

    def _write_array(self, leaf: SchemaNode) -> str:
        self._expect(leaf, {"type", "items", "minItems", "maxItems"})
        least, most = leaf.get("minItems", 0), leaf.get("maxItems")
        if most == 0 or not any(self._iter_leaves(leaf.rest)):
            return '"[]"'
        item = self._write_value(leaf.rest)
        bounds = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        items = f"{item} ({quote(self._literals.separator)} {item}){bounds}"
        return f'"[" ({items}){"" if least else "?"} "]"'

    def _write_string(self, leaf: SchemaNode) -> str:
        text = self._lower_text(leaf)
        assert isinstance(text, Terminal)
        mark = self._spelling.spell(self._literals.quote)
        if isinstance(mark, OneToken):
            token = tokens.write_ids(mark.ids)
            inner = self._name_terminal(f"({text.expression}) & {SOME}")
            return f"{token} ({inner}){'?' if text.nullable else ''} {token}"
        around = quote(self._literals.quote)
        return self._name_terminal(f"{around} ({text.expression}) {around}")

    def _spell(self, text: str) -> str:
        """Return a text of the model, with its special tokens as tokens."""
        part = self._spelling.spell(text)
        items = part.items if isinstance(part, Chain) else (part,)
        return " ".join(
            tokens.write_ids(item.ids) if isinstance(item, OneToken) else quote(item.lead)
            for item in items
            if isinstance(item, OneToken | Terminal)
        )

    def _add_rule(self, expression: str) -> str:
        name = f"a{self._number}_{len(self._rules)}"
        self._rules[name] = expression
        return name

    def _name_terminal(self, expression: str) -> str:
        return self._terminals.setdefault(expression, f"A{self._number}_{len(self._terminals)}")
