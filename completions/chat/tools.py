"""The tools of a request, and the model's calls to them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from completions.grammars.structural_tag.json_nodes import ANY_OBJECT, JSONNode, make_json_value
from completions.grammars.structural_tag.literals import Literals
from completions.grammars.structural_tag.parameters import Style

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

    def make_arguments_node(self, style: Style | Literals | None) -> JSONNode:
        """Return the grammar node of one object: an instance of `parameters`."""
        schema = {**ANY_OBJECT, **self.parameters} if self.parameters else NO_ARGUMENTS
        fields = asdict(style) if style else None
        return make_json_value(schema, self.schema_path, fields, or_object=not self.strict)


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


def dump(value: Any) -> str:
    """Compact JSON, as it goes into prompts and arguments."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
