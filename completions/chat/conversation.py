"""Renders messages and tools as the text of a prompt."""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from completions.catalog.control_tokens import find_control_tokens
from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.forms import rename_calls, simplify, split_calls, write_calls_in_text
from completions.chat.prompt_text import PromptText, join
from completions.chat.template import ChatTemplateError
from completions.chat.tool_format import ToolFormat
from completions.chat.tool_formats import hermes
from completions.chat.tools import Tool

logger = logging.getLogger(__name__)
_MARK = "\ue000end of the last message\ue000"
"""A text that no template and no message has: it begins in Unicode's private use area."""

_FIRST_CALL = "tool_calls[0]"


def render_prompt(
    model: ModelFiles,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool],
    tool_format: ToolFormat | None,
    options: Mapping[str, Any],
    add_generation_prompt: bool = True,
) -> PromptText:
    """Return the prompt, by default up to where the answer begins. Raises ChatTemplateError.

    If the template does not use `tools`, the tools become text in the model's format; and so do
    earlier calls if it does not use them. What it refuses is rendered in a simpler form.
    """
    source = model.choose_template(bool(tools)) or ""
    if tool_format is not None and tool_format.call_id:
        messages = rename_calls(messages, tool_format.call_id)
    knows_tools = "tools" in template.find_variables(source)
    write = (tool_format or hermes.FORMAT).write
    if knows_tools and "tool_calls" in source:
        messages = _make_texts(messages)
        if _FIRST_CALL in source:  # the template would leave out the others
            messages = split_calls(messages)
    else:
        messages = write_calls_in_text(messages, write)
    if not knows_tools and tools and tool_format is not None:
        messages = _add_preamble(messages, tool_format.write_preamble(tools))
    refusal: ChatTemplateError | None = None
    for form in simplify(messages, write):
        try:
            return template.render(
                model,
                form,
                add_generation_prompt=add_generation_prompt,
                tools=[tool.to_dict() for tool in tools] or None,
                options=options,
            )
        except ChatTemplateError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


@lru_cache
def can_trace(model: ModelFiles) -> bool:
    """Return whether it is known of all control tokens in a prompt that the template wrote them. A
    template may use an operation that loses track of its own."""
    messages = [{"role": role, "content": role[0]} for role in ("user", "assistant", "user")]
    try:
        prompt = render_prompt(model, messages, (), None, {})
    except ChatTemplateError:
        return True
    if find_control_tokens(model).split(prompt, prompt.mask) is None:
        return True
    logger.warning(
        "the chat template of %s makes special tokens in a way that Quire does not follow, so "
        "messages may contain special tokens",
        model.entry.id,
    )
    return False


def mark_end(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with a mark behind the text of the last one, for :func:`cut_at_mark`."""
    *others, last = messages
    return [*others, {**last, "content": last["content"] + _MARK} if last.get("content") else last]


def cut_at_mark(prompt: PromptText) -> PromptText:
    """Return the prompt up to the end of the last message's text, for the model to continue.
    Raises ChatTemplateError."""
    end = prompt.rfind(_MARK)
    if end < 0:
        raise ChatTemplateError("the last message has no text in the prompt that could continue")
    return prompt[:end]


def _make_texts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with empty text where a message that calls tools has none: templates
    search or append to the text, as Qwen's do, or would print `None`."""
    return [{**message, "content": message.get("content") or ""} for message in messages]


def _add_preamble(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """Return the messages with the text appended to the system message, which is added if
    missing."""
    if messages and messages[0]["role"] == "system":
        first, *rest = messages
        return [{**first, "content": join("\n\n", (first["content"], text))}, *rest]
    return [{"role": "system", "content": text}, *messages]
