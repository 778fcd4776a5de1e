"""The grammar of a GLM call's arguments: declared keys in order, strings raw, the rest as JSON."""

from collections.abc import Mapping
from typing import Any

from completions.chat.lark import (
    EMPTY,
    Rules,
    Spelling,
    UnenforceableError,
    literal,
    one_of,
    schema_part,
)
from completions.chat.tools import Tool
from completions.grammars.composition import Part

_ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "deprecated"}
_STRING_KEYS = {"type", "enum", "const", "minLength", "maxLength"}
_OBJECT_KEYS = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_BEYOND = "cannot be enforced in this model's call format, which writes {what}."


def is_string(schema: Any) -> bool:
    """Whether values of a property are strings and nothing else, which are written raw."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return bool(schema["type"] == "string")
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return bool(values) and all(isinstance(value, str) for value in values)


def argument_rules(tool: Tool, rule: str, spelling: Spelling) -> Rules:
    """Rule `rule`: the arguments of one tool. Raises UnenforceableError."""
    if not tool.strict or tool.parameters is None:
        return Rules(f"{_any_arguments(rule, spelling)}")
    return _StrictArguments(tool, rule, spelling).rules()


def _any_arguments(rule: str, spelling: Spelling) -> str:
    lines = [
        f"{rule}: {rule}_any*",
        f'{rule}_any: {_key_mark(spelling)} {rule}_key "\\n"? {spelling.mark("<arg_value>")} '
        f"{rule}_value",
        _key_rule(f"{rule}_key", spelling),
        spelling.until(f"{rule}_value", "</arg_value>"),
    ]
    return "\n".join(lines)


def _key_mark(spelling: Spelling) -> str:
    return f'"\\n"? {spelling.mark("<arg_key>")}'


def _key_rule(rule: str, spelling: Spelling) -> str:
    return f"{rule}: /[^<>\\n]+/ {spelling.mark('</arg_key>')}"


class _StrictArguments:
    """One strict tool's schema on its way into rules."""

    def __init__(self, tool: Tool, rule: str, spelling: Spelling) -> None:
        assert tool.parameters is not None
        self._schema = tool.parameters
        self._place = f"{tool.place}.function.parameters"
        self._rule = rule
        self._spelling = spelling
        self._lines: list[str] = []
        self._parts: list[Part] = []

    def rules(self) -> Rules:
        schema = self._schema
        beyond = schema.keys() - _OBJECT_KEYS - _ANNOTATIONS
        if beyond or schema.get("type", "object") != "object":
            keyword = min(beyond, default="type")
            message = _BEYOND.format(what="arguments key by key")
            raise UnenforceableError(f"{keyword} {message}", f"{self._place}.{keyword}")
        required = set(schema.get("required", ()))
        properties: Mapping[str, Any] = schema.get("properties", {})
        undeclared = required - properties.keys()
        if undeclared:
            message = f"{min(undeclared)} is required but not among properties."
            raise UnenforceableError(message, f"{self._place}.required")
        pieces = [
            self._argument(f"{self._rule}_{index}", name, value, name in required)
            for index, (name, value) in enumerate(properties.items())
        ]
        if schema.get("additionalProperties", True) is not False:
            message = "additionalProperties must be false: only declared keys can be enforced."
            raise UnenforceableError(message, f"{self._place}.additionalProperties")
        self._lines.insert(0, f"{self._rule}: {' '.join(pieces) or EMPTY}")
        return Rules("\n".join(self._lines), tuple(self._parts))

    def _argument(self, rule: str, name: str, schema: Any, required: bool) -> str:
        spelling, end = self._spelling, self._spelling.mark("</arg_value>")
        opening = " ".join(
            [_key_mark(spelling), literal(name), spelling.mark("</arg_key>"), '"\\n"?',
             spelling.mark("<arg_value>")]
        )  # fmt: skip
        if is_string(schema):
            value = self._string(f"{rule}_text", schema, f"{self._place}.properties.{name}")
        else:
            definitions = {key: self._schema[key] for key in ("$defs", "definitions")
                           if key in self._schema}  # fmt: skip
            whole = {**schema, **definitions} if isinstance(schema, Mapping) else {}
            place = f"{self._place}.properties.{name}"
            self._parts.append(schema_part(f"{rule}_json", whole, place, spelling.whitespace))
            value = f"@{rule}_json {end}"
        self._lines.append(f"{rule}: {opening} {value}")
        return rule if required else f"{rule}?"

    def _string(self, rule: str, schema: Mapping[str, Any], place: str) -> str:
        """A string written raw, with the mark that ends it."""
        beyond = schema.keys() - _STRING_KEYS - _ANNOTATIONS
        if beyond:
            message = _BEYOND.format(what="strings without quotes")
            raise UnenforceableError(f"{min(beyond)} {message}", f"{place}.{min(beyond)}")
        end = self._spelling.mark("</arg_value>")
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            return f"{one_of([literal(value) for value in values])} {end}"
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        if not low and high == "":
            self._lines.append(self._spelling.until(rule, "</arg_value>"))
            return rule
        if "</arg_value>" in self._spelling.special_ids:
            self._lines.append(f"{rule}: /(?s:.){{{low},{high}}}/ {end}")
        else:
            self._lines.append(f"{rule}[lazy]: /(?s:.){{{low},{high}}}<\\/arg_value>/")
        return rule
