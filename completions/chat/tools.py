"""The tools of a request and the calls that a model makes of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AUTO, NONE, REQUIRED = "auto", "none", "required"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers. With `strict` its arguments always fit `parameters`."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    place: str = "tools"
    """Where in the request it stands, for errors."""

    def as_dict(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a conversation."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the tools may or must be called."""

    mode: str = AUTO
    """`auto`, `none` or `required`."""
    names: tuple[str, ...] | None = None
    """Only these; all when None."""
    parallel: bool = True
    """Whether one answer may call several times."""

    def allowed(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        if self.mode == NONE:
            return ()
        return tuple(tool for tool in tools if self.names is None or tool.name in self.names)


def dump(value: Any) -> str:
    """Compact JSON, as it goes into prompts and arguments."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
