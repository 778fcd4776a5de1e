"""An object's properties in the tags of a model's own call format: strings are bare, other values
are JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from completions.grammars import regex
from completions.grammars.complaints import shortened, shown
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.keywords import ANNOTATIONS, ENFORCED
from completions.grammars.json_schema.pointers import at, escape
from completions.grammars.json_schema.schema import OPTIONS, Schema, dump
from completions.grammars.structural_tag.lowering import Lowering
from completions.grammars.structural_tag.parts import (
    Loop,
    Opaque,
    Part,
    Terminal,
    alternatives,
    chain,
    literal,
    quoted,
)

_SPACES = Terminal("/[ \\t\\n\\r]{0,16}/", nullable=True, beginnings="/[ \\t\\n\\r]/")
"""White space between tags. Bounded, so that a model cannot write it forever."""
_MAX_UNIONS = 8
_BEGINNINGS = {
    "object": '"{"', "array": '"["', "string": r'"\""', "number": "/[0-9-]/",
    "integer": "/[0-9-]/", "boolean": "/[tf]/", "null": '"n"',
}  # fmt: skip
_ANY_BEGINNING = r'/[{\["0-9tfn-]/'


def json_symbol(compiled: Mapping[str, Any], kind: Any = None) -> Opaque:
    """The part for a checked schema; `kind` is its type if that is known."""
    first = _BEGINNINGS.get(kind, _ANY_BEGINNING) if isinstance(kind, str) else _ANY_BEGINNING
    return Opaque(f"%json {json.dumps(compiled, ensure_ascii=False)}", first)


@dataclass(frozen=True, slots=True)
class Style:
    """The tags around a name and its value.

    In `opening`, `{mark}` says whether the value is a string; white space may stand at `{spaces}`.
    """

    name: str
    before: str
    opening: str
    closing: str
    undeclared: str = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
    """A terminal for undeclared parameter names."""


_DSML = "\uff5cDSML\uff5c"
STYLES = {
    style.name: style
    for style in (
        Style("qwen_xml", "<parameter=", ">", "</parameter>"),
        Style("minimax_xml", '<parameter name="', '">', "</parameter>"),
        Style(
            "deepseek_xml", f'<{_DSML}parameter name="', '" string="{mark}">',
            f"</{_DSML}parameter>",
        ),
        Style(
            "glm_xml", "<arg_key>", "</arg_key>{spaces}<arg_value>", "</arg_value>",
            r"/[^<>\s]([^<>\n]*[^<>\s])?/",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """A schema inside the root, and the path to it without references."""

    schema: Mapping[str, Any]
    pointer: str

    def inside(self, keyword: str, name: str, schema: Any) -> "_Place":
        """`true` allows anything."""
        if schema is False:
            schema = {"enum": []}
        pointer = f"{self.pointer}/{keyword}/{escape(name)}"
        return _Place({} if schema is True else schema, pointer)


class Parameters:
    """The parameters of one object schema, which was checked and lies at a pointer."""

    def __init__(self, schema: Schema, pointer: str, style: str, lowering: Lowering) -> None:
        self._schema = schema
        self._pointer = pointer
        self._style = STYLES[style]
        self._spelling = lowering.spelling
        self._max_chain = lowering.compiler.limits.max_chain

    def lower(self) -> Part:
        root = self._followed(_Place(self._schema.compiled, ""))
        self._expect(root, {"type", "properties", "required", "additionalProperties"})
        if root.schema.get("type", "object") != "object":
            kind = shown(root.schema.get("type"))
            raise self._error(root, f"the style {self._style.name} needs type object, not {kind}")
        properties = root.schema.get("properties", {})
        required = set(root.schema.get("required", ()))
        if lost := required - properties.keys():
            raise self._error(root, f"{shortened(min(lost))} is required; declare it in properties")
        # An optional parameter stays a separate lexeme. Fused with its neighbours, it would be
        # written once more for each optional parameter before it.
        written: list[Part] = []
        for name, schema in properties.items():
            place = root.inside("properties", name, schema)
            one = self._parameter(literal(name), place)
            written.append(one if name in required else Loop(one, 0, 1))
        more = root.schema.get("additionalProperties", not properties)
        if more is not False:
            place = _Place({} if more is True else more, f"{root.pointer}/additionalProperties")
            other = self._style.undeclared
            if properties:
                other = f"({other} & ~({' | '.join(map(quoted, properties))}))"
            name = Terminal(other, is_open=True)
            written.append(Loop(self._parameter(name, place), 0, None))
        return chain([*written, _SPACES])

    def _parameter(self, name: Part, place: _Place) -> Part:
        """A name with all ways to write its value, after spaces."""
        before = self._spelling.text(self._style.before)
        ways: dict[str, list[Part]] = {"true": [], "false": []}
        for is_text, value in self._values(place):
            ways["true" if is_text else "false"].append(value)
        written = [
            chain([before, name, *self._opening(mark), alternatives(values)])
            for mark, values in ways.items()
            if values
        ]
        return chain([_SPACES, alternatives(written)])

    def _opening(self, mark: str) -> list[Part]:
        name_end, *value_begin = self._style.opening.replace("{mark}", mark).split("{spaces}")
        rest = (part for tag in value_begin for part in (_SPACES, self._spelling.text(tag)))
        return [self._spelling.text(name_end), *rest]

    def _values(self, place: _Place) -> Iterator[tuple[bool, Part]]:
        """For each way to write a value: whether it is bare text, and its part with the closing
        tag."""
        for leaf in self._leaves(place):
            schema, kinds = leaf.schema, _kinds(leaf.schema)
            listed = _listed(schema)
            if any(isinstance(value, str) for value in listed):
                self._expect(leaf, {"const", "enum", "type"})
                for value in listed:
                    text = value if isinstance(value, str) else dump(value)
                    yield isinstance(value, str), self._closed(literal(text))
            elif "string" in kinds or not schema.keys() - ANNOTATIONS:
                yield True, self._closed(self._text(leaf))
                if rest := [kind for kind in kinds if kind != "string"]:
                    yield False, self._json(leaf, rest)
            else:
                yield False, self._json(leaf, kinds)

    def _leaves(self, place: _Place, depth: int = 0) -> Iterator[_Place]:
        """The alternatives of a schema, once its references and unions are followed."""
        place = self._followed(place)
        union = next((key for key in ("anyOf", "oneOf") if key in place.schema), None)
        if union is None or _listed(place.schema) or depth >= _MAX_UNIONS:
            yield place
            return
        self._expect(place, {union, "type"})
        for index, option in enumerate(place.schema[union]):
            yield from self._leaves(place.inside(union, str(index), option), depth + 1)

    def _text(self, place: _Place) -> Part:
        """A string's bare characters, which cannot contain the closing tag."""
        schema = place.schema
        patterns = _patterns(schema)
        self._expect(place, {"type", "pattern", "minLength", "maxLength", *patterns})
        text = self._spelling.open_text(self._pointer + place.pointer, self._style.closing)
        bounds = [text.rest]
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if least or most is not None:
            bounds.append(f"/(?s:.{{{least},{'' if most is None else most}}})/")
        bounds += (regex.whole(each) for found in patterns.values() for each in found)
        nullable = not least and not patterns
        return replace(text, rest=f"({' & '.join(bounds)})", nullable=nullable)

    def _json(self, place: _Place, kinds: list[str]) -> Part:
        schema = self._schema.part(place.pointer, kinds)
        value = json_symbol(schema, kinds[0] if len(kinds) == 1 else None)
        return self._closed(_SPACES, value, _SPACES)

    def _closed(self, *parts: Part) -> Part:
        return chain([*parts, self._spelling.text(self._style.closing)])

    def _followed(self, place: _Place) -> _Place:
        """The place that references lead to. Raises GrammarError for a cycle."""
        for _ in range(self._max_chain):
            reference = place.schema.get("$ref")
            if not isinstance(reference, str):
                return place
            self._expect(place, {"$ref"})
            found = self._schema.survey.targets.get(reference)
            if found is None or not isinstance(found[1], dict):
                break
            place = _Place(found[1], found[0])
        raise self._error(place, "this $ref leads back to itself; let it lead to a schema")

    def _expect(self, place: _Place, keywords: set[str]) -> None:
        """Raises GrammarError for a keyword that this style cannot enforce."""
        for keyword in place.schema:
            if keyword not in keywords and keyword not in ANNOTATIONS and keyword != OPTIONS:
                pointer, name = self._written(place, keyword, keywords)
                message = (
                    f"{shortened(name)} is not supported here in the style {self._style.name}; "
                    "leave it out, or use the style json"
                )
                raise GrammarError(message, pointer=f"{self._pointer}{pointer}/{name}")

    def _written(self, place: _Place, keyword: str, supported: set[str]) -> tuple[str, str]:
        """The pointer and the keyword that the client wrote for a keyword of the schema."""
        pointer = self._schema.rewritten.original(place.pointer)
        given = at(self._schema.given, pointer)
        if not isinstance(given, dict) or keyword in given:
            return pointer, keyword
        others = (name for name in given if name in ENFORCED and name not in supported)
        return pointer, next(others, keyword)

    def _error(self, place: _Place, message: str) -> GrammarError:
        return GrammarError(message, pointer=self._pointer + place.pointer)


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    """The only values that a schema allows, if it lists them."""
    listed: list[Any] = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return listed


def _patterns(schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """The patterns of a string, by the keyword that holds them: `pattern`, and `allOf` with those
    of its look-aheads."""
    found = {"pattern": [schema["pattern"]]} if "pattern" in schema else {}
    both = schema.get("allOf", ())
    if both and all(each.keys() == {"type", "pattern"} for each in both):
        found["allOf"] = [each["pattern"] for each in both]
    return found


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)
