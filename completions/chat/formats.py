"""What a model's own way to write tool calls consists of, and the ways that there are.

A further one is a module with a class like those below, named in `FORMATS` and in the catalogue.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from completions.chat.events import CallParser
from completions.chat.glm import Glm
from completions.chat.hermes import Hermes
from completions.chat.lark import Rules, Spelling
from completions.chat.llama3 import Llama3
from completions.chat.tools import Call, Tool


class ToolFormat(Protocol):
    """How calls look in a model's prompts and output."""

    name: str
    """In models.toml."""
    opening: str
    """What every call begins with."""
    marks: tuple[str, ...]
    """Texts that the parser looks for and that may be special tokens of the model."""
    between: str
    """What may stand between two calls; empty for nothing."""

    def rules(self, tools: Sequence[Tool], spelling: Spelling) -> Rules:
        """A grammar whose rule `body` is a call of one of the tools, after its opening.

        Raises UnenforceableError for a strict tool whose schema this format cannot enforce.
        """

    def write(self, call: Call) -> str:
        """A call as the model would have written it."""

    def preamble(self, tools: Sequence[Tool]) -> str:
        """A system message on the tools, for models whose template does not describe them."""

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        """Finds calls of these tools in an answer."""


_ALL: Sequence[ToolFormat] = (Hermes(), Llama3(), Glm())
FORMATS: Mapping[str, ToolFormat] = {written.name: written for written in _ALL}
