"""Messages and tools to the text of a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.tool_formats import ToolFormat
from completions.chat.tools import Call, Tool


def prompt_text(
    model: ModelFiles,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool],
    written: ToolFormat | None,
    options: Mapping[str, Any],
) -> str:
    """The prompt up to where the answer begins. Raises ChatTemplateError.

    A template that knows nothing of tools gets them, and earlier calls, as text in the model's
    format, so that any conversation can be put into any template.
    """
    if model.chat_template is not None and "tools" not in template.variables_of(
        model.chat_template
    ):
        messages = _plain(messages, written)
        if tools and written is not None:
            messages = _with_preamble(messages, written.preamble(tools))
    return template.render(
        model,
        messages,
        add_generation_prompt=True,
        tools=[tool.as_dict() for tool in tools] or None,
        options=options,
    )


def _plain(
    messages: Sequence[Mapping[str, Any]], written: ToolFormat | None
) -> list[dict[str, Any]]:
    """Messages whose calls are part of their text."""
    plain = []
    for message in messages:
        texts = [message["content"]] if message.get("content") else []
        if written is not None:
            texts += [written.write(_call(call)) for call in message.get("tool_calls", ())]
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        plain.append({**kept, "content": "\n".join(texts)})
    return plain


def _call(call: Mapping[str, Any]) -> Call:
    function = call["function"]
    return Call(function["name"], function["arguments"])


def _with_preamble(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """The text at the end of the system message, which is made if there is none."""
    if messages and messages[0]["role"] == "system":
        first, *rest = messages
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]
    return [{"role": "system", "content": text}, *messages]
