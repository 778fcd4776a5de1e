"""The tools of a request, the model's calls to them, and the formats in which it writes calls."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from completions.chat.call_parser import CallParser
from completions.contract.stop_spans import StopSpan
from completions.grammars.structural_tag.json_nodes import ANY_OBJECT, JSONNode, make_json_value

AUTO, NONE, REQUIRED = "auto", "none", "required"
NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
"""The schema of a tool without `parameters`: OpenAI's API defines it as an empty list."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers. A grammar enforces its `parameters`."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    """Whether a schema that no grammar can express is refused, not replaced by any object."""
    path: str = "tools"
    """Its path in the request, for errors."""

    @property
    def schema_path(self) -> str:
        """The path of `parameters` in the request."""
        return f"{self.path}.function.parameters"

    def to_dict(self) -> dict[str, Any]:
        """Return the tool in the form that chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}

    def make_arguments_node(self, style: str = "json") -> JSONNode:
        """Return the grammar node of one object: an instance of `parameters`."""
        schema = {**ANY_OBJECT, **self.parameters} if self.parameters else NO_ARGUMENTS
        return make_json_value(schema, self.schema_path, style, or_object=not self.strict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a conversation."""

    name: str
    arguments: Mapping[str, Any] | str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat(ABC):
    """How calls look in a model's prompts and in its output."""

    name: str
    """The format's name in models.toml."""
    opening: str
    """The text that every call begins with."""
    closing: str
    """The text that every call ends with."""
    delimiters: tuple[str, ...]
    """Texts that the parser looks for and that may be special tokens of the model."""
    between: str
    """The text that may separate two calls; empty for none."""
    instructions: str
    """A system message for models whose template does not describe tools; {tools} lists them."""
    tools_apart: str = "\n"
    """The separator between two tools in the preamble."""

    @property
    def make_span(self) -> StopSpan:
        """A call in an answer's text, with the characters that the parser drops behind it."""
        return StopSpan(self.opening, self.closing, dropped=" \t\r\n")

    @abstractmethod
    def make_call_node(self, tool: Tool) -> JSONNode:
        """Return a call of the tool, as one tag of a structural tag."""

    @abstractmethod
    def write(self, call: ToolCall) -> str:
        """Return a call as the model would have written it."""

    @abstractmethod
    def make_parser(self, tools: Sequence[Tool]) -> CallParser:
        """Return a parser that finds calls of these tools in an answer."""

    def write_preamble(self, tools: Sequence[Tool]) -> str:
        """Return the preamble that describes these tools."""
        list_text = self.tools_apart.join(dump(tool.to_dict()) for tool in tools)
        return self.instructions.replace("{tools}", list_text)


def dump(value: Any) -> str:
    """Compact JSON, as it goes into prompts and arguments."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
