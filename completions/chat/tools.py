"""The tools of a request, and the model's calls to them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from json.encoder import encode_basestring
from typing import Self

from completions.grammars.structural_tag.json_nodes import (
    ANY_OBJECT,
    JSONNode,
    make_json_value,
    make_node,
    make_sequence,
    make_text,
)
from completions.grammars.structural_tag.literals import JSON_QUOTE, Literals
from completions.grammars.structural_tag.parameters import Style

FUNCTION, CUSTOM = "function", "custom"
"""Types of tools: those with arguments, and those whose input is a text."""
LARK, REGEX = "lark", "regex"
INPUT = "input"
"""The only argument of a custom tool, as models see it."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
AUTO, NONE, REQUIRED = "auto", "none", "required"
NO_ARGUMENTS: Mapping[str, object] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
"""The schema of a tool without `parameters`: OpenAI's API defines it as an empty list."""


@dataclass(frozen=True, slots=True)
class InputGrammar:
    """What the input of a custom tool must match."""

    syntax: str
    """`lark` or `regex`."""
    definition: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers, or a custom tool, which models see as a function of one
    text. A grammar enforces its `parameters`."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    strict: bool = False
    """Whether a schema that no grammar can express is refused, not replaced by any object."""
    path: str = "tools"
    """Its path in the request, for errors."""

    is_custom: bool = False
    grammar: InputGrammar | None = None
    """Of a custom tool."""

    @classmethod
    def make_custom(cls, name: str, description: str | None, grammar: InputGrammar | None) -> Self:
        """Return a custom tool as models see it."""
        schema: dict[str, object] = {"type": "string"}
        if grammar is not None:
            text = f"Matches this grammar ({grammar.syntax}):\n{grammar.definition}"
            schema["description"] = text
        parameters = {**NO_ARGUMENTS, "properties": {INPUT: schema}, "required": [INPUT]}
        return cls(name, description, parameters, is_custom=True, grammar=grammar)

    @property
    def kind(self) -> str:
        return CUSTOM if self.is_custom else FUNCTION

    @property
    def schema_path(self) -> str:
        """The path in the request of what arguments must match."""
        if self.is_custom:
            return f"{self.path}.custom.format.grammar.definition"
        return f"{self.path}.function.parameters"

    @property
    def read_schema(self) -> Mapping[str, object]:
        """The schema by which arguments without quotes are read. An input that matches a grammar
        has quotes."""
        return {"properties": {INPUT: {}}} if self.grammar else self.parameters or {}

    def to_dict(self) -> dict[str, object]:
        """Return the tool in the form that chat templates expect."""
        function: dict[str, object] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}

    def make_arguments_node(self, style: Style | Literals | None) -> JSONNode:
        """Return the grammar node of one object: an instance of `parameters`."""
        if self.grammar is not None:
            return self._make_input_node(self.grammar, style)
        schema = {**ANY_OBJECT, **self.parameters} if self.parameters else NO_ARGUMENTS
        fields = asdict(style) if style else None
        return make_json_value(schema, self.schema_path, fields, or_object=not self.strict)

    def _make_input_node(self, grammar: InputGrammar, style: Style | Literals | None) -> JSONNode:
        """Return the grammar node of an object that holds an input: in quotes, since the end of a
        bare text would be unclear, or between special tokens of the format."""
        is_quoted, quote = True, JSON_QUOTE
        if isinstance(style, Style):
            is_quoted = not style.names_types
            before, name, opening, _, *closing = style.write(INPUT, None if is_quoted else "")
            quote = JSON_QUOTE if is_quoted else ""
            begin, end = f"\n{before}{name}{opening}{quote}", f"{quote}{''.join(closing)}\n"
        elif style is not None:
            is_quoted = style.quote == JSON_QUOTE
            begin, end = f"{INPUT}{style.assign}{style.quote}", style.quote
        else:
            begin, end = f'{{"{INPUT}": {quote}', f"{quote}}}"
        text = make_node(
            "custom_input",
            definition=grammar.definition,
            is_regex=grammar.syntax == REGEX,
            is_quoted=is_quoted,
            place=self.schema_path,
        )
        return make_sequence(make_text(begin), text, make_text(end))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a conversation."""

    name: str
    arguments: Mapping[str, object] | str
    """An object; or the text as it is, if that is none."""

    @property
    def text(self) -> str:
        """The arguments as JSON, if they are an object."""
        return self.arguments if isinstance(self.arguments, str) else dump(self.arguments)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the tools may or must be called."""

    mode: str = AUTO
    """`auto`, `none` or `required`."""
    names: tuple[str, ...] | None = None
    """The only tools allowed; all when None."""
    parallel: bool = True
    """Whether one answer may contain several calls."""

    def filter_tools(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        if self.mode == NONE:
            return ()
        return tuple(tool for tool in tools if self.names is None or tool.name in self.names)


def dump(value: object) -> str:
    """Compact JSON, as it goes into prompts and arguments."""
    return _ENCODER.encode(value)


def escape(text: str) -> str:
    """Return a text as it stands between the quotes of a JSON string."""
    return encode_basestring(text)[1:-1]
