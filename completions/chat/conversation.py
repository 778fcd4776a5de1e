"""Renders messages and tools as the text of a prompt."""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from completions.catalog.control_tokens import find_control_tokens
from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.forms import (
    merge_system,
    merge_turns,
    rename_calls,
    simplify,
    split_calls,
    write_calls_in_text,
)
from completions.chat.prompt_text import PromptText, concatenate, join, trust
from completions.chat.reasoning import ThinkTags
from completions.chat.template import ChatTemplateError
from completions.chat.tool_format import ToolFormat
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool

logger = logging.getLogger(__name__)
_MARK = "\ue000end of the last message\ue000"
"""A text that no template and no message has: it begins in Unicode's private use area."""

_FIRST_CALL = "tool_calls[0]"
_PROBE = Tool("probe")
_QUESTION = [{"role": "user", "content": "?"}]
_ANSWER = {"role": "assistant", "content": "."}
_CALL = {
    **_ANSWER,
    "tool_calls": [
        {"id": "0", "type": "function", "function": {"name": _PROBE.name, "arguments": {}}}
    ],
}


def render_prompt(
    model: ModelFiles,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Tool],
    tool_format: ToolFormat | None,
    options: Mapping[str, object],
    add_generation_prompt: bool = True,
) -> PromptText:
    """Return the prompt, by default up to where the answer begins. Raises ChatTemplateError.

    If the template does not use `tools`, the tools become text in the model's format; and so do
    earlier calls if it does not use them. Results that it leaves out are said by the user. What it
    refuses is rendered in a simpler form.
    """
    source = model.choose_template(bool(tools)) or ""
    if tool_format is not None and tool_format.call_id:
        messages = rename_calls(messages, tool_format.make_call_id)
    knows_tools, has_tools = _uses_tools(model), bool(tools)
    write = (tool_format or TOOL_FORMATS["hermes"]).write
    if knows_tools and _uses_calls(model, has_tools):
        messages = _make_texts(messages)
        if _FIRST_CALL in source:  # the template would leave out the others
            messages = split_calls(messages)
    else:
        messages = write_calls_in_text(messages, write)
    if not _uses_results(model, has_tools) and any(each["role"] == "tool" for each in messages):
        messages = merge_turns(write_calls_in_text(messages, write))
    if not knows_tools and tools and tool_format is not None:
        messages = _add_preamble(messages, tool_format.write_preamble(tools))
    if not _uses_system(model) and messages and messages[0]["role"] == "system":
        messages = merge_system(merge_turns(write_calls_in_text(messages, write)))
    refusal: ChatTemplateError | None = None
    for form in simplify(messages, write):
        try:
            return template.render(
                model,
                _make_parts(form) if _wants_parts(model) else form,
                add_generation_prompt=add_generation_prompt,
                tools=[tool.to_dict() for tool in tools] or None,
                options=options,
            )
        except ChatTemplateError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


@lru_cache
def _uses_tools(model: ModelFiles) -> bool:
    """Return whether the template writes tools. Some name them in a branch for documents only."""
    if "tools" not in template.find_variables(model.choose_template(has_tools=True) or ""):
        return False
    return _differ(model, (_QUESTION, False), (_QUESTION, True))


@lru_cache
def _uses_calls(model: ModelFiles, has_tools: bool) -> bool:
    """Return whether the template writes earlier calls."""
    if "tool_calls" not in (model.choose_template(has_tools) or ""):
        return False
    return _differ(model, ([*_QUESTION, _ANSWER], has_tools), ([*_QUESTION, _CALL], has_tools))


@lru_cache
def _uses_results(model: ModelFiles, has_tools: bool) -> bool:
    """Return whether the template writes results of tools. Many leave out messages of this role."""
    said = [*_QUESTION, _CALL if _uses_calls(model, has_tools) else _ANSWER]
    results = ({"role": "tool", "tool_call_id": "0", "content": text} for text in "ab")
    return _differ(model, *(([*said, result], has_tools) for result in results))


@lru_cache
def _uses_system(model: ModelFiles) -> bool:
    """Return whether the template writes what the system says."""
    said = ([{"role": "system", "content": text}, *_QUESTION] for text in "ab")
    return _differ(model, *((each, False) for each in said))


@lru_cache
def _wants_parts(model: ModelFiles) -> bool:
    """Return whether the template takes contents as lists of parts only, as those of some models
    that read images do."""
    asked = [[{"role": "user", "content": text}] for text in "ab"]
    whole, parts = (
        _differ(model, *((each, False) for each in form), if_refused=False)
        for form in (asked, map(_make_parts, asked))
    )
    return parts and not whole


def _make_parts(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, Any]]:
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _differ(
    model: ModelFiles, *conversations: tuple[Sequence[Any], bool], if_refused: bool = True
) -> bool:
    """Return whether the template writes conversations, with or without tools, unlike each other;
    or what is given, if it refuses one."""
    tools = [_PROBE.to_dict()]
    try:
        prompts = {
            template.render(
                model, messages, add_generation_prompt=False, tools=tools if has_tools else None
            )
            for messages, has_tools in conversations
        }
    except ChatTemplateError:
        return if_refused
    return len(prompts) > 1


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


def trust_tags(messages: Sequence[Mapping[str, Any]], tags: ThinkTags) -> list[Mapping[str, Any]]:
    """Return the messages with the tags of the reasoning that the last one begins with as the
    template's own texts, since the model continues that message."""
    *others, last = messages
    head, begin, rest = (last.get("content") or "").partition(tags.begin)
    if not begin or head.strip():
        return list(messages)
    thoughts, end, answer = rest.partition(tags.end)
    content = concatenate([head, trust(begin), thoughts, trust(end), answer])
    return [*others, {**last, "content": content}]


def cut_at_mark(prompt: PromptText) -> PromptText:
    """Return the prompt up to the end of the last message's text, for the model to continue.
    Raises ChatTemplateError."""
    end = prompt.rfind(_MARK)
    if end < 0:
        raise ChatTemplateError("the last message has no text in the prompt that could continue")
    return prompt[:end]


def _make_texts(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, Any]]:
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
