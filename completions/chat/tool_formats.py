"""The formats in which models write tool calls.

To add one, write a module with a class like those listed in `TOOL_FORMATS`, and name it in the
catalogue.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from completions.chat.events import CallParser
from completions.chat.glm import Glm
from completions.chat.hermes import Hermes
from completions.chat.llama3 import Llama3
from completions.chat.tools import Call, Tool
from completions.grammars.structural_tag.json_nodes import JSONNode


class ToolFormat(Protocol):
    """How calls look in a model's prompts and in its output."""

    name: str
    """The format's name in models.toml."""
    opening: str
    """The text that every call begins with."""
    marks: tuple[str, ...]
    """Texts that the parser looks for and that may be special tokens of the model."""
    between: str
    """What may stand between two calls; empty for nothing."""

    def call(self, tool: Tool) -> JSONNode:
        """A call of the tool, as a tag of a structural tag."""

    def write(self, call: Call) -> str:
        """A call as the model would have written it."""

    def preamble(self, tools: Sequence[Tool]) -> str:
        """A system message about the tools, for a model whose template does not describe them."""

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        """A parser that finds calls of these tools in an answer."""


_ALL: Sequence[ToolFormat] = (Hermes(), Llama3(), Glm())
TOOL_FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in _ALL}
