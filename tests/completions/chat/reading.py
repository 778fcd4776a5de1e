"""Reads texts of models as the service does."""

from collections.abc import Sequence
from typing import NamedTuple

from completions.chat.call_parser import CallParser
from completions.chat.parser import OutputParser
from completions.chat.reasoning import ReasoningParser
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool

REPRESENTATIVES = [
    "apertus", "cohere_command", "deepseek_v3", "deepseek_v32", "gemma4", "glm", "hermes",
    "kimi_k2", "llama3", "minimax_m3", "mistral", "openai", "pythonic", "qwen3_coder", "step3",
]  # fmt: skip
"""One format of each way to write a call and its arguments."""


class Message(NamedTuple):
    reasoning: str
    content: str
    calls: list[tuple[str, str]]
    """Names, with arguments or inputs."""
    has_called: bool
    """Whether there are calls and all are complete."""


def read(
    form: str | None,
    pieces: Sequence[str],
    tools: Sequence[Tool] = (),
    thinking: ReasoningParser | None = None,
    *,
    hidden: Sequence[str] = (),
    only_first: bool = False,
    is_cut: bool = False,
) -> Message:
    """Return the message that a client makes of the deltas."""
    written = TOOL_FORMATS[form] if form else None
    parser = OutputParser(
        thinking,
        CallParser(written, tools, only_first=only_first) if written else None,
        hidden,
        written.hidden if written else (),
        written.around if written else ("", ""),
    )
    deltas = [*map(parser.push, pieces), parser.finish(is_cut=is_cut)]
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        for piece in delta.calls:
            if piece.name is not None:
                calls.append((piece.name, ""))
            assert piece.index == len(calls) - 1
            name, text = calls[-1]
            assert piece.is_custom == any(each.is_custom for each in tools if each.name == name)
            calls[-1] = name, text + piece.arguments
    reasoning, content = (
        "".join(each) for each in zip(*((d.reasoning, d.content) for d in deltas), strict=True)
    )
    return Message(reasoning, content, calls, parser.has_called)
