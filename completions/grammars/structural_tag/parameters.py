"""An object's properties in the tags of a model's own call format: strings are bare, other values
are JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from completions.grammars import regex
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.schema import Schema, dump
from completions.grammars.messages import format_value, truncate
from completions.grammars.schema.keywords import ANNOTATIONS, ENFORCED
from completions.grammars.schema.nodes import SchemaNode, list_value_types
from completions.grammars.schema.pointers import get
from completions.grammars.structural_tag.lowering import Lowering
from completions.grammars.structural_tag.parts import (
    Loop,
    Opaque,
    Part,
    Terminal,
    make_alternatives,
    make_chain,
    make_literal,
    quote,
)

_SPACES = Terminal("/[ \\t\\n\\r]{0,16}/", nullable=True, beginnings="/[ \\t\\n\\r]/")
"""White space between tags. Bounded, so that a model cannot write it forever."""
_MAX_UNIONS = 8
_BEGINNINGS = {
    "object": '"{"',
    "array": '"["',
    "string": r'"\""',
    "number": "/[0-9-]/",
    "integer": "/[0-9-]/",
    "boolean": "/[tf]/",
    "null": '"n"',
}
_ANY_BEGINNING = r'/[{\["0-9tfn-]/'


def make_json_symbol(compiled: Mapping[str, object], kind: object) -> Opaque:
    """Return the part for a checked schema; `kind` is its type if that is known."""
    first = _BEGINNINGS.get(kind, _ANY_BEGINNING) if isinstance(kind, str) else _ANY_BEGINNING
    return Opaque(f"%json {json.dumps(compiled, ensure_ascii=False)}", first)


@dataclass(frozen=True, slots=True)
class Style:
    """The tags around a name and its value.

    In `opening`, `{mark}` says what the value is; white space may stand at `{spaces}`.
    `closing` may repeat the `{name}`.
    A line break at the end of `opening` or the start of `closing` is no part of the value.
    """

    name: str
    before: str
    opening: str
    closing: str
    undeclared: str = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
    """A terminal for undeclared parameter names."""
    constants: tuple[str, str, str] | None = None
    """How true, false and null may be written beside JSON."""
    names_types: bool = False
    """Whether the mark is the JSON type of the value, instead of `true` for strings."""
    item: str = ""
    """The name of each item of a list, if lists and objects are tags too, and not JSON."""

    @classmethod
    def parse(cls, name: str, template: str, **fields: Any) -> Self:
        """Return the style of a template, which has the fields {name} and {value}, and may have
        {mark}, or {type} where the mark is a type."""
        before, _, rest = template.partition("{name}")
        opening, _, closing = rest.replace("{type}", "{mark}").partition("{value}")
        return cls(name, before, opening, closing, names_types="{type}" in rest, **fields)

    @property
    def texts(self) -> list[str]:
        """The texts around names and values."""
        return [self.before, self.opening, self.closing]

    @property
    def has_mark(self) -> bool:
        return "{mark}" in self.opening

    def make_mark(self, kind: str) -> str:
        """Return the mark of a value of a JSON type."""
        if self.names_types:
            return "number" if kind == "integer" else kind
        return dump(kind == "string")

    def mark_value(self, value: object) -> str:
        return self.make_mark(min(list_value_types(value)))

    def is_text(self, mark: str) -> bool | None:
        """Return whether a mark says that the value is a string; None if no mark says it."""
        return mark == self.make_mark("string") if self.has_mark else None

    @property
    def value_end(self) -> str:
        """The part of the closing tag that no value contains."""
        return self.closing.partition("{name}")[0].strip()

    def write(self, name: str, value: object) -> list[str]:
        """Return a parameter as a model writes it: texts of the format and others in turn."""
        mark = self.mark_value(value)
        opening = self.opening.replace("{spaces}", "\n").replace("{mark}", mark)
        closing, *rest = self.closing.split("{name}")
        named = (part for each in rest for part in (name, each))
        return [self.before, name, opening, *self.write_value(value), closing, *named]

    def write_value(self, value: object) -> list[str]:
        """Return a value; one of several parts begins and ends with a text that is not the
        format's."""
        if self.item and isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else None
            members = items or ((self.item, each) for each in value)
            return ["", *(part for member in members for part in (*self.write(*member), ""))]
        return [value if isinstance(value, str) else dump(value)]


_TEMPLATES = {
    "qwen_xml": "<parameter={name}>{value}</parameter>",
    "minimax_xml": '<parameter name="{name}">{value}</parameter>',
    "deepseek_xml": '<!parameter name="{name}" string="{mark}">{value}</!parameter>'.replace(
        "!", "\uff5cDSML\uff5c"
    ),
    "glm_xml": "<arg_key>{name}</arg_key>{spaces}<arg_value>{value}</arg_value>",
}
STYLES = {name: Style.parse(name, template) for name, template in _TEMPLATES.items()}
STYLES["glm_xml"] = replace(STYLES["glm_xml"], undeclared=r"/[^<>\s]([^<>\n]*[^<>\s])?/")


class Parameters:
    """The parameters of one object schema, which was checked and lies at a pointer."""

    def __init__(self, schema: Schema, pointer: str, style: Style, lowering: Lowering) -> None:
        self._schema = schema
        self._pointer = pointer
        self._style = style
        self._spelling = lowering.spelling
        self._max_chain = lowering.compiler.limits.max_chain

    def lower(self) -> Part:
        root = self._follow(self._schema.survey.document.root)
        properties, required, more = self._read_object(root)
        # An optional parameter stays a separate lexeme. Fused with its neighbours, it would be
        # written once more for each optional parameter before it.
        parts: list[Part] = []
        for name, node in properties.items():
            self._require_readable(name, node)
            one = self._lower_parameter(make_literal(name), node)
            parts.append(one if name in required else Loop(one, 0, 1))
        if more is not None:
            other = Terminal(self._make_undeclared(root), is_open=True)
            parts.append(Loop(self._lower_parameter(other, more), 0, None))
        return make_chain([*parts, _SPACES])

    def _require_readable(self, name: str, node: SchemaNode) -> None:
        """Raise GrammarError for a name that could not be read back from its tag."""
        after = self._style.opening.partition("{")[0].strip()
        is_closing = bool(self._style.item) and name.startswith("/")
        if name != name.strip() or is_closing or (after and after in name):
            message = f"the style {self._style.name} cannot write this name; rename it"
            raise self._make_error(node, message)

    def _read_object(
        self, node: SchemaNode
    ) -> tuple[dict[str, SchemaNode], list[str], SchemaNode | None]:
        """Return an object's properties that may have a value, the names of those required, and the
        schema of others; None if there are no others."""
        self._expect(node, {"type", "properties", "required", "additionalProperties"})
        if node.types not in ([], ["object"]):
            kind = format_value(node.keywords["type"])
            message = f"the style {self._style.name} needs type object, not {kind}"
            raise self._make_error(node, message)
        declared, required = node.properties, node.required
        properties = {name: each for name, each in declared.items() if any(self._iter_leaves(each))}
        if lost := set(required) - properties.keys():
            message = f"{truncate(min(lost))} is required; declare it in properties, with a value"
            raise self._make_error(node, message)
        if declared and "additionalProperties" not in node.keywords:
            return properties, required, None
        others = node.get_schema("additionalProperties")
        return properties, required, others if any(self._iter_leaves(others)) else None

    def _make_undeclared(self, node: SchemaNode) -> str:
        """Return a terminal for the names of properties that an object does not declare."""
        names = " | ".join(map(quote, node.properties))
        return f"({self._style.undeclared} & ~({names}))" if names else self._style.undeclared

    def _lower_parameter(self, name: Part, node: SchemaNode) -> Part:
        """Return a name with all ways to write its value, after spaces."""
        before = self._spelling.spell(self._style.before)
        ways: dict[str, list[Part]] = {}
        for mark, value in self._iter_values(node):
            ways.setdefault(mark, []).append(value)
        options = [
            make_chain([before, name, *self._lower_opening(mark), make_alternatives(values)])
            for mark, values in ways.items()
        ]
        return make_chain([_SPACES, make_alternatives(options)])

    def _lower_opening(self, mark: str) -> list[Part]:
        name_end, *value_begin = self._style.opening.replace("{mark}", mark).split("{spaces}")
        rest = (part for tag in value_begin for part in (_SPACES, self._spelling.spell(tag)))
        return [self._spelling.spell(name_end), *rest]

    def _iter_values(self, node: SchemaNode) -> Iterator[tuple[str, Part]]:
        """Yield, for each way to write a value, its mark, and its part with the closing tag."""
        style, leaves = self._style, list(self._iter_leaves(node))
        constants = None if any(map(_can_be_text, leaves)) else style.constants
        for leaf in leaves:
            kinds, values = leaf.types, leaf.values or []
            if any(isinstance(value, str) for value in values):
                self._expect(leaf, {"const", "enum", "type"})
                for value in values:
                    text = value if isinstance(value, str) else dump(value)
                    yield style.mark_value(value), self._lower_closing(make_literal(text))
            elif "string" in kinds or not leaf.keywords.keys() - ANNOTATIONS:
                yield style.make_mark("string"), self._lower_closing(self._lower_text(leaf))
                others = kinds or (list(_BEGINNINGS) if style.has_mark else [])
                if rest := [kind for kind in others if kind != "string"]:
                    yield from self._iter_json(leaf, rest)
            else:
                yield from self._iter_json(leaf, kinds)
                for spelling in _list_constants(kinds, values, constants):
                    yield style.make_mark("null"), self._lower_closing(make_literal(spelling))

    def _iter_json(self, leaf: SchemaNode, kinds: list[str]) -> Iterator[tuple[str, Part]]:
        """Yield values that are no bare strings, by their marks."""
        if not kinds and not self._style.names_types:
            yield self._style.make_mark("null"), self._lower_json(leaf, [])
        marks: dict[str, list[str]] = {}
        all_kinds = (kind for kind in _BEGINNINGS if self._style.names_types and kind != "string")
        for kind in kinds or all_kinds:
            marks.setdefault(self._style.make_mark(kind), []).append(kind)
        for mark, same in marks.items():
            yield mark, self._lower_json(leaf, same)

    def _iter_leaves(self, node: SchemaNode, depth: int = 0) -> Iterator[SchemaNode]:
        """Yield the alternatives of a schema, once its references and unions are followed; none
        where no value is allowed."""
        node = self._follow(node)
        union = next((key for key in ("anyOf", "oneOf") if key in node.keywords), None)
        if union is None or node.values or depth >= _MAX_UNIONS:
            yield from () if node.is_empty else (node,)
            return
        self._expect(node, {union, "type"})
        for option in node.list_schemas(union):
            yield from self._iter_leaves(option, depth + 1)

    def _lower_text(self, node: SchemaNode) -> Part:
        """Return a string's bare characters, which cannot contain the closing tag."""
        patterns = _list_patterns(node)
        self._expect(node, {"type", "pattern", "minLength", "maxLength", *patterns})
        closing = self._style.value_end if self._style.item else self._style.closing
        text = self._spelling.make_open_text(self._pointer + node.pointer, closing.strip())
        bounds = [text.rest]
        minimum, maximum = node.get("minLength", 0), node.get("maxLength")
        if minimum or maximum is not None:
            bounds.append(f"/(?s:.{{{minimum},{'' if maximum is None else maximum}}})/")
        bounds += (regex.anchor(each) for texts in patterns.values() for each in texts)
        nullable = not minimum and not patterns
        stops = (closing,) if text.stops else ()
        return replace(text, rest=f"({' & '.join(bounds)})", nullable=nullable, stops=stops)

    def _lower_json(self, node: SchemaNode, kinds: list[str]) -> Part:
        schema = self._schema.make_part(node, kinds)
        value = make_json_symbol(schema, kinds[0] if len(kinds) == 1 else None)
        return self._lower_closing(_SPACES, value, _SPACES)

    def _lower_closing(self, *parts: Part) -> Part:
        return make_chain([*parts, self._spelling.spell(self._style.closing)])

    def _follow(self, node: SchemaNode) -> SchemaNode:
        """Return the schema that references lead to. Raises GrammarError for a cycle."""
        for _ in range(self._max_chain):
            if (target := node.target) is None:
                return node
            self._expect(node, {"$ref"})
            node = target
        raise self._make_error(node, "this $ref leads back to itself; let it lead to a schema")

    def _expect(self, node: SchemaNode, keywords: set[str]) -> None:
        """Raise GrammarError for a keyword that this style cannot enforce."""
        for keyword in node.keywords:
            if keyword not in keywords and keyword not in ANNOTATIONS:
                pointer, name = self._find_unsupported(node, keyword, keywords)
                message = (
                    f"{truncate(name)} is not supported here in the style {self._style.name}; "
                    "leave it out, or use the style json"
                )
                raise GrammarError(message, pointer=f"{self._pointer}{pointer}/{name}")

    def _find_unsupported(
        self, node: SchemaNode, keyword: str, supported: set[str]
    ) -> tuple[str, str]:
        """Return the pointer and the keyword that the client wrote for a keyword of the schema."""
        pointer = self._schema.rewritten.to_original(node.pointer)
        original = get(self._schema.original, pointer)
        if not isinstance(original, dict) or keyword in original:
            return pointer, keyword
        others = (name for name in original if name in ENFORCED and name not in supported)
        return pointer, next(others, keyword)

    def _make_error(self, node: SchemaNode, message: str) -> GrammarError:
        return GrammarError(message, pointer=self._pointer + node.pointer)


def _can_be_text(leaf: SchemaNode) -> bool:
    """Return whether a value may be a string, which other values cannot be distinguished from."""
    if leaf.values is not None:
        return any(isinstance(value, str) for value in leaf.values)
    return "string" in leaf.types or not leaf.keywords.keys() - ANNOTATIONS


def _list_constants(
    kinds: Sequence[str], values: Sequence[object], constants: Sequence[str] | None
) -> list[str]:
    """Return the allowed constants, in the spelling that a style has for true, false and null."""
    if constants is None:
        return []
    spellings = dict(zip((True, False, None), constants, strict=True))
    allowed: Mapping[str, list[bool | None]] = {"boolean": [True, False], "null": [None]}
    listed = values or [value for kind in kinds for value in allowed.get(kind, [])]
    return [spellings[value] for value in listed if value is None or isinstance(value, bool)]


def _list_patterns(node: SchemaNode) -> dict[str, list[str]]:
    """Return the patterns of a string, by the keyword that holds them: `pattern`, and `allOf` with
    those of its look-aheads."""
    patterns = {"pattern": [node.get("pattern")]} if "pattern" in node.keywords else {}
    both = node.list_schemas("allOf")
    if both and all(each.keywords.keys() == {"type", "pattern"} for each in both):
        patterns["allOf"] = [each.get("pattern") for each in both]
    return patterns
