"""An object's properties in the tags of a model's own call format: strings are bare, other values
are JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from completions.grammars import regex
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.keywords import ANNOTATIONS, ENFORCED
from completions.grammars.json_schema.nodes import list_types, list_value_types, list_values
from completions.grammars.json_schema.pointers import escape, get
from completions.grammars.json_schema.schema import OPTIONS, Schema, dump
from completions.grammars.messages import format_value, truncate
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


def make_json_symbol(compiled: Mapping[str, Any], kind: Any = None) -> Opaque:
    """Return the part for a checked schema; `kind` is its type if that is known."""
    first = _BEGINNINGS.get(kind, _ANY_BEGINNING) if isinstance(kind, str) else _ANY_BEGINNING
    return Opaque(f"%json {json.dumps(compiled, ensure_ascii=False)}", first)


@dataclass(frozen=True, slots=True)
class Style:
    """The tags around a name and its value.

    In `opening`, `{mark}` says what the value is; white space may stand at `{spaces}`.
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

    def write(self, name: str, value: object) -> list[str]:
        """Return a parameter as a model writes it: tags and values in turn."""
        mark = self.mark_value(value)
        opening = self.opening.replace("{spaces}", "\n").replace("{mark}", mark)
        text = value if isinstance(value, str) else dump(value)
        return [self.before, name, opening, text, self.closing]


_DSML = "\uff5cDSML\uff5c"
STYLES = {
    style.name: style
    for style in (
        Style("qwen_xml", "<parameter=", ">", "</parameter>"),
        Style("minimax_xml", '<parameter name="', '">', "</parameter>"),
        Style(
            "deepseek_xml",
            f'<{_DSML}parameter name="',
            '" string="{mark}">',
            f"</{_DSML}parameter>",
        ),
        Style(
            "glm_xml",
            "<arg_key>",
            "</arg_key>{spaces}<arg_value>",
            "</arg_value>",
            r"/[^<>\s]([^<>\n]*[^<>\s])?/",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Location:
    """A schema inside the root, and the path to it without references."""

    schema: Mapping[str, Any]
    pointer: str

    def enter(self, keyword: str, name: str, schema: Any) -> "Location":
        """Return the location of a subschema; `true` allows anything."""
        if schema is False:
            schema = {"enum": []}
        pointer = f"{self.pointer}/{keyword}/{escape(name)}"
        return Location({} if schema is True else schema, pointer)


class Parameters:
    """The parameters of one object schema, which was checked and lies at a pointer."""

    def __init__(self, schema: Schema, pointer: str, style: Style, lowering: Lowering) -> None:
        self._schema = schema
        self._pointer = pointer
        self._style = style
        self._spelling = lowering.spelling
        self._max_chain = lowering.compiler.limits.max_chain

    def lower(self) -> Part:
        properties, required, more = self._read_object(
            self._follow(Location(self._schema.compiled, ""))
        )
        # An optional parameter stays a separate lexeme. Fused with its neighbours, it would be
        # written once more for each optional parameter before it.
        parts: list[Part] = []
        for name, location in properties.items():
            self._require_readable(name, location)
            one = self._lower_parameter(make_literal(name), location)
            parts.append(one if name in required else Loop(one, 0, 1))
        if more is not None:
            other = Terminal(self._make_undeclared(properties), is_open=True)
            parts.append(Loop(self._lower_parameter(other, more), 0, None))
        return make_chain([*parts, _SPACES])

    def _require_readable(self, name: str, location: Location) -> None:
        """Raise GrammarError for a name that could not be read back from its tag."""
        after = self._style.opening.partition("{")[0].strip()
        if name != name.strip() or (after and after in name):
            message = f"the style {self._style.name} cannot write this name; rename it"
            raise self._make_error(location, message)

    def _read_object(
        self, location: Location
    ) -> tuple[dict[str, Location], set[str], Location | None]:
        """Return an object's properties, the names of those required, and the schema of others;
        None if there are no others."""
        schema = location.schema
        self._expect(location, {"type", "properties", "required", "additionalProperties"})
        if schema.get("type", "object") != "object":
            kind = format_value(schema.get("type"))
            message = f"the style {self._style.name} needs type object, not {kind}"
            raise self._make_error(location, message)
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if lost := required - properties.keys():
            message = f"{truncate(min(lost))} is required; declare it in properties"
            raise self._make_error(location, message)
        found = {
            name: location.enter("properties", name, each) for name, each in properties.items()
        }
        more = schema.get("additionalProperties", not properties)
        if more is False:
            return found, required, None
        others = {} if more is True else more
        return found, required, Location(others, f"{location.pointer}/additionalProperties")

    def _make_undeclared(self, properties: Iterable[str]) -> str:
        """Return a terminal for the names of other properties."""
        names = " | ".join(map(quote, properties))
        return f"({self._style.undeclared} & ~({names}))" if names else self._style.undeclared

    def _lower_parameter(self, name: Part, location: Location) -> Part:
        """Return a name with all ways to write its value, after spaces."""
        before = self._spelling.spell(self._style.before)
        ways: dict[str, list[Part]] = {}
        for mark, value in self._iter_values(location):
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

    def _iter_values(self, location: Location) -> Iterator[tuple[str, Part]]:
        """Yield, for each way to write a value, its mark, and its part with the closing tag."""
        style, leaves = self._style, list(self._iter_leaves(location))
        constants = None if any(map(_can_be_text, leaves)) else style.constants
        for leaf in leaves:
            schema, kinds = leaf.schema, list_types(leaf.schema)
            values = list_values(schema) or []
            if any(isinstance(value, str) for value in values):
                self._expect(leaf, {"const", "enum", "type"})
                for value in values:
                    text = value if isinstance(value, str) else dump(value)
                    yield style.mark_value(value), self._lower_closing(make_literal(text))
            elif "string" in kinds or not schema.keys() - ANNOTATIONS:
                yield style.make_mark("string"), self._lower_closing(self._lower_text(leaf))
                others = kinds or (list(_BEGINNINGS) if style.has_mark else [])
                if rest := [kind for kind in others if kind != "string"]:
                    yield from self._iter_json(leaf, rest)
            else:
                yield from self._iter_json(leaf, kinds)
                for spelling in _list_constants(kinds, values, constants):
                    yield style.make_mark("null"), self._lower_closing(make_literal(spelling))

    def _iter_json(self, leaf: Location, kinds: list[str]) -> Iterator[tuple[str, Part]]:
        """Yield values that are no bare strings, by their marks."""
        if not kinds and not self._style.names_types:
            yield self._style.make_mark("null"), self._lower_json(leaf, [])
        marks: dict[str, list[str]] = {}
        all_kinds = (kind for kind in _BEGINNINGS if self._style.names_types and kind != "string")
        for kind in kinds or all_kinds:
            marks.setdefault(self._style.make_mark(kind), []).append(kind)
        for mark, same in marks.items():
            yield mark, self._lower_json(leaf, same)

    def _iter_leaves(self, location: Location, depth: int = 0) -> Iterator[Location]:
        """Yield the alternatives of a schema, once its references and unions are followed."""
        location = self._follow(location)
        union = next((key for key in ("anyOf", "oneOf") if key in location.schema), None)
        if union is None or list_values(location.schema) or depth >= _MAX_UNIONS:
            yield location
            return
        self._expect(location, {union, "type"})
        for index, option in enumerate(location.schema[union]):
            yield from self._iter_leaves(location.enter(union, str(index), option), depth + 1)

    def _lower_text(self, location: Location) -> Part:
        """Return a string's bare characters, which cannot contain the closing tag."""
        schema = location.schema
        patterns = _list_patterns(schema)
        self._expect(location, {"type", "pattern", "minLength", "maxLength", *patterns})
        closing = self._style.closing
        text = self._spelling.make_open_text(self._pointer + location.pointer, closing.strip())
        bounds = [text.rest]
        minimum, maximum = schema.get("minLength", 0), schema.get("maxLength")
        if minimum or maximum is not None:
            bounds.append(f"/(?s:.{{{minimum},{'' if maximum is None else maximum}}})/")
        bounds += (regex.anchor(each) for texts in patterns.values() for each in texts)
        nullable = not minimum and not patterns
        stops = (closing,) if text.stops else ()
        return replace(text, rest=f"({' & '.join(bounds)})", nullable=nullable, stops=stops)

    def _lower_json(self, location: Location, kinds: list[str]) -> Part:
        schema = self._schema.make_part(location.pointer, kinds)
        value = make_json_symbol(schema, kinds[0] if len(kinds) == 1 else None)
        return self._lower_closing(_SPACES, value, _SPACES)

    def _lower_closing(self, *parts: Part) -> Part:
        return make_chain([*parts, self._spelling.spell(self._style.closing)])

    def _follow(self, location: Location) -> Location:
        """Return the place that references lead to. Raises GrammarError for a cycle."""
        for _ in range(self._max_chain):
            reference = location.schema.get("$ref")
            if not isinstance(reference, str):
                return location
            self._expect(location, {"$ref"})
            target = self._schema.survey.targets.get(reference)
            if target is None or not isinstance(target[1], dict):
                break
            location = Location(target[1], target[0])
        raise self._make_error(location, "this $ref leads back to itself; let it lead to a schema")

    def _expect(self, location: Location, keywords: set[str]) -> None:
        """Raise GrammarError for a keyword that this style cannot enforce."""
        for keyword in location.schema:
            if keyword not in keywords and keyword not in ANNOTATIONS and keyword != OPTIONS:
                pointer, name = self._find_unsupported(location, keyword, keywords)
                message = (
                    f"{truncate(name)} is not supported here in the style {self._style.name}; "
                    "leave it out, or use the style json"
                )
                raise GrammarError(message, pointer=f"{self._pointer}{pointer}/{name}")

    def _find_unsupported(
        self, location: Location, keyword: str, supported: set[str]
    ) -> tuple[str, str]:
        """Return the pointer and the keyword that the client wrote for a keyword of the schema."""
        pointer = self._schema.rewritten.to_original(location.pointer)
        original = get(self._schema.original, pointer)
        if not isinstance(original, dict) or keyword in original:
            return pointer, keyword
        others = (name for name in original if name in ENFORCED and name not in supported)
        return pointer, next(others, keyword)

    def _make_error(self, location: Location, message: str) -> GrammarError:
        return GrammarError(message, pointer=self._pointer + location.pointer)


def _can_be_text(leaf: Location) -> bool:
    """Return whether a value may be a string, from which no other value is told apart."""
    values = list_values(leaf.schema)
    if values is not None:
        return any(isinstance(value, str) for value in values)
    return "string" in list_types(leaf.schema) or not leaf.schema.keys() - ANNOTATIONS


def _list_constants(
    kinds: Sequence[str], values: Sequence[Any], constants: Sequence[str] | None
) -> list[str]:
    """Return the allowed constants, in the spelling that a style has for true, false and null."""
    if constants is None:
        return []
    spellings = dict(zip((True, False, None), constants, strict=True))
    allowed: Mapping[str, list[bool | None]] = {"boolean": [True, False], "null": [None]}
    listed = values or [value for kind in kinds for value in allowed.get(kind, [])]
    return [spellings[value] for value in listed if value is None or isinstance(value, bool)]


def _list_patterns(schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the patterns of a string, by the keyword that holds them: `pattern`, and `allOf` with
    those of its look-aheads."""
    patterns = {"pattern": [schema["pattern"]]} if "pattern" in schema else {}
    both = schema.get("allOf", ())
    if both and all(each.keys() == {"type", "pattern"} for each in both):
        patterns["allOf"] = [each["pattern"] for each in both]
    return patterns
