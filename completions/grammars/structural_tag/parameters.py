"""An object's properties in the tags of a model's own call format: strings bare, others as JSON."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from completions.grammars import regex
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.keywords import ANNOTATIONS, escape
from completions.grammars.json_schema.schema import OPTIONS, Schema, dump
from completions.grammars.structural_tag import json_values
from completions.grammars.structural_tag.nodes import JSONSchema
from completions.grammars.structural_tag.parts import (
    Loop,
    Part,
    Terminal,
    alternatives,
    chain,
    literal,
    quoted,
)
from completions.grammars.structural_tag.spelling import Spelling

_SPACES = Terminal("/[ \\t\\n\\r]{0,16}/", nullable=True, beginnings="/[ \\t\\n\\r]/")
"""Between tags, where models write newlines; bounded, so that they cannot go on forever."""
_MAX_UNIONS = 8


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
    """A terminal of the parameter names that are not declared."""


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
    """A schema inside the root, and the way there without references."""

    schema: Mapping[str, Any]
    pointer: str

    def inside(self, keyword: str, name: str, schema: Any) -> "_Place":
        """`true` allows anything."""
        if schema is False:
            schema = {"enum": []}
        pointer = f"{self.pointer}/{keyword}/{escape(name)}"
        return _Place({} if schema is True else schema, pointer)


class Parameters:
    """Of one object schema, checked before; `pointer` is where its root lies."""

    def __init__(
        self,
        schema: Schema,
        node: JSONSchema,
        spelling: Spelling,
        compiler: Compiler,
    ) -> None:
        self._schema = schema
        self._pointer = node.pointer
        self._style = STYLES[node.style]
        self._spelling = spelling
        self._compiler = compiler

    def lower(self) -> Part:
        root = self._followed(_Place(self._schema.compiled, ""))
        self._expect(root, {"type", "properties", "required", "additionalProperties"})
        if root.schema.get("type", "object") != "object":
            raise self._error(root, f"the style {self._style.name} needs an object")
        properties = root.schema.get("properties", {})
        required = set(root.schema.get("required", ()))
        if lost := required - properties.keys():
            raise self._error(root, f"{min(lost)} is required, but not among the properties")
        # An optional parameter stays a lexeme of its own: fused with its neighbours, each would
        # have to be written once for every parameter that may be left out before it.
        written: list[Part] = []
        for name, schema in properties.items():
            place = root.inside("properties", name, schema)
            one = self._parameter(literal(name), place)
            written.append(one if name in required else Loop(one, 0, 1))
        more = root.schema.get("additionalProperties", not properties)
        if more is not False:
            place = _Place({} if more is True else more, f"{root.pointer}/additionalProperties")
            name = _other_name(properties, self._style.undeclared)
            written.append(Loop(self._parameter(name, place), 0, None))
        return chain([*written, _SPACES])

    def _parameter(self, name: Part, place: _Place) -> Part:
        """A name with each way to write its value, and spaces before it."""
        ways: dict[str, list[Part]] = {"true": [], "false": []}
        for is_text, value in self._values(place):
            ways["true" if is_text else "false"].append(value)
        written = [
            chain([self._tag(self._style.before), name, *self._opening(mark), alternatives(values)])
            for mark, values in ways.items()
            if values
        ]
        return chain([_SPACES, alternatives(written)])

    def _opening(self, mark: str) -> list[Part]:
        name_end, *value_begin = self._style.opening.replace("{mark}", mark).split("{spaces}")
        rest = (part for tag in value_begin for part in (_SPACES, self._tag(tag)))
        return [self._tag(name_end), *rest]

    def _tag(self, text: str) -> Part:
        return self._spelling.text(text)

    def _values(self, place: _Place) -> Iterator[tuple[bool, Part]]:
        """Ways to write a value and its closing tag; whether each is bare text."""
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
        """The alternatives of a schema, whose references and unions are followed."""
        place = self._followed(place)
        union = next((key for key in ("anyOf", "oneOf") if key in place.schema), None)
        if union is None or _listed(place.schema) or depth >= _MAX_UNIONS:
            yield place
            return
        self._expect(place, {union, "type"})
        for index, option in enumerate(place.schema[union]):
            yield from self._leaves(place.inside(union, str(index), option), depth + 1)

    def _text(self, place: _Place) -> Part:
        """A string's characters, bare; its closing tag cannot stand among them."""
        self._expect(place, {"type", "pattern", "minLength", "maxLength"})
        schema = place.schema
        text = self._spelling.open_text(self._pointer + place.pointer, self._style.closing)
        bounds = [text.rest]
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if least or most is not None:
            bounds.append(f"/(?s:.{{{least},{'' if most is None else most}}})/")
        if "pattern" in schema:
            bounds.append(self._pattern(place))
        nullable = not least and "pattern" not in schema
        return replace(text, rest=f"({' & '.join(bounds)})", nullable=nullable)

    def _pattern(self, place: _Place) -> str:
        try:
            return regex.search(place.schema["pattern"])
        except GrammarError as error:
            error.pointer = f"{self._pointer}{place.pointer}/pattern"
            raise

    def _json(self, place: _Place, kinds: list[str]) -> Part:
        schema = self._schema.part(place.pointer, kinds)
        value = json_values.symbol(schema, kinds[0] if len(kinds) == 1 else None)
        return chain([_SPACES, value, _SPACES, self._tag(self._style.closing)])

    def _closed(self, text: Part) -> Part:
        return chain([text, self._tag(self._style.closing)])

    def _followed(self, place: _Place) -> _Place:
        """Where the references from a place lead; those in a circle lead nowhere."""
        for _ in range(self._compiler.limits.max_chain):
            reference = place.schema.get("$ref")
            if not isinstance(reference, str):
                return place
            self._expect(place, {"$ref"})
            found = self._schema.survey.targets.get(reference)
            if found is None or not isinstance(found[1], dict):
                break
            place = _Place(found[1], found[0])
        raise self._error(place, "$ref leads to no schema of its own")

    def _expect(self, place: _Place, keywords: set[str]) -> None:
        """Raises GrammarError for a keyword that this style cannot enforce."""
        for keyword in place.schema:
            if keyword not in keywords and keyword not in ANNOTATIONS and keyword != OPTIONS:
                message = f"{keyword} is not supported here in the style {self._style.name}"
                raise GrammarError(message, pointer=f"{self._pointer}{place.pointer}/{keyword}")

    def _error(self, place: _Place, message: str) -> GrammarError:
        return GrammarError(message, pointer=self._pointer + place.pointer)


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    """The only values that a schema allows, if it lists them."""
    listed: list[Any] = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return listed


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _other_name(declared: Iterable[str], name: str) -> Part:
    """A name that is none of those declared."""
    names = " | ".join(map(quoted, declared))
    return Terminal(f"({name} & ~({names}))" if names else name, is_open=True)
