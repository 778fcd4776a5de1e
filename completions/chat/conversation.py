"""Renders messages and tools as the text of a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.tools import Call, Tool, ToolFormat


def prompt_text(
    model: ModelFiles,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool],
    written: ToolFormat | None,
    options: Mapping[str, Any],
    add_generation_prompt: bool = True,
) -> str:
    """The prompt, by default up to where the answer begins. Raises ChatTemplateError.

    If the template does not use `tools`, the tools and earlier calls become text in the model's
    format.
    """
    if model.chat_template is not None and "tools" not in template.variables_of(
        model.chat_template
    ):
        messages = _plain(messages, written)
        if tools and written is not None:
            messages = _with_preamble(messages, written.preamble(tools))
    else:
        messages = _with_text(messages)
    return template.render(
        model,
        messages,
        add_generation_prompt=add_generation_prompt,
        tools=[tool.as_dict() for tool in tools] or None,
        options=options,
    )


def _with_text(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with empty text where a message that calls tools has none: templates search or
    append to the text, as Qwen's do, or would print `None`."""
    return [{**message, "content": message.get("content") or ""} for message in messages]


def _plain(
    messages: Sequence[Mapping[str, Any]], written: ToolFormat | None
) -> list[dict[str, Any]]:
    """The messages, with tool calls written into their text."""
    plain = []
    for message in messages:
        texts = [message["content"]] if message.get("content") else []
        if written is not None:
            functions = (call["function"] for call in message.get("tool_calls", ()))
            texts += [written.write(Call(each["name"], each["arguments"])) for each in functions]
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        plain.append({**kept, "content": "\n".join(texts)})
    return plain


def _with_preamble(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """The messages with the text appended to the system message, which is added if missing."""
    if messages and messages[0]["role"] == "system":
        first, *rest = messages
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]
    return [{"role": "system", "content": text}, *messages]
