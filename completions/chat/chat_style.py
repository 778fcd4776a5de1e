"""Finds how a model calls tools and thinks, in models.toml, its chat template or its type."""

import logging
from dataclasses import dataclass
from functools import lru_cache

from completions.catalog.entries import AUTO, NONE
from completions.catalog.model_files import ModelFiles, ModelFilesError
from completions.chat import template
from completions.chat.markers import find_marks
from completions.chat.reasoning import ThinkTags
from completions.chat.template import ChatTemplateError
from completions.chat.tool_format import ToolFormat
from completions.chat.tool_formats import TOOL_FORMATS

logger = logging.getLogger(__name__)
THINK_TAGS = (
    ThinkTags("<think>", "</think>"),
    ThinkTags("[THINK]", "[/THINK]"),
    ThinkTags("<seed:think>", "</seed:think>"),
    ThinkTags("<mm:think>", "</mm:think>"),
    ThinkTags("<longcat_think>", "</longcat_think>"),
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThinkTags("<|channel|>analysis<|message|>", "<|end|>"),
    ThinkTags("<|channel>thought", "<channel|>"),
    ThinkTags("<|think:start|>", "<|think:end|>"),
    ThinkTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ThinkTags("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)
_SWITCHES = {"enable_thinking": (False, True), "thinking": (False, True)} | {
    "thinking_mode": ("disabled", "enabled")
}
"""Variables of chat templates that turn thinking off and on, with their values."""


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """How a model calls tools and thinks."""

    tool_format: ToolFormat | None
    """The format of its calls; None if it calls no tools."""
    think_tags: ThinkTags | None
    """The tags around its reasoning; None if it does not think."""
    thinking_switch: str | None
    """The variable of its chat template that turns thinking on and off."""
    found_in: str
    """Where the format was found, in words."""

    def find_switch_value(self, is_on: bool) -> object:
        """Return the value of the switch that turns thinking on or off."""
        return _SWITCHES.get(self.thinking_switch or "", (False, True))[is_on]

    def describe(self) -> str:
        """Return what an operator reads in logs."""
        name = self.tool_format.name if self.tool_format else NONE
        tags = " and ".join(self.think_tags or ()) or NONE
        return f"tool_format {name} ({self.found_in}), think_tags {tags}"

    def to_dict(self) -> dict[str, object]:
        tags = self.think_tags
        return {
            "tool_format": self.tool_format.name if self.tool_format else None,
            "found_in": self.found_in,
            "think_tags": [tags.begin, tags.end] if tags else None,
            "thinking_switch": self.thinking_switch,
        }


@lru_cache
def find_chat_style(files: ModelFiles) -> ChatStyle:
    """Return how a model calls tools and thinks. What models.toml says counts more than its
    template."""
    source = _read_template(files)
    tool_format, found_in = _find_format(files, source)
    think_tags = _find_think_tags(files, source, tool_format)
    switch = files.entry.thinking_switch
    if switch is None and think_tags is not None:
        switch = _find_switch(source)
    style = ChatStyle(tool_format, think_tags, switch, found_in)
    logger.info("how %s calls tools and thinks: %s", files.entry.id, style.describe())
    return style


def list_abilities(files: ModelFiles) -> dict[str, bool]:
    """Return capabilities that only some models have, by their names in the API."""
    style = find_chat_style(files)
    tools, thinking = style.tool_format is not None, style.think_tags is not None
    return {**files.abilities, "tools": tools, "thinking": thinking}


def _read_template(files: ModelFiles) -> str:
    try:
        return files.choose_template(has_tools=True) or ""
    except ModelFilesError:
        return ""


def _find_format(files: ModelFiles, source: str) -> tuple[ToolFormat | None, str]:
    named = files.entry.tool_format
    if named != AUTO:
        return (None if named == NONE else TOOL_FORMATS[named]), "models.toml"
    best: ToolFormat | None = None
    best_score, signature = (0, False), tuple[str, ...]()
    for each in TOOL_FORMATS.values():
        for marks in each.signatures or [()]:
            score = sum(map(len, marks)) if all(mark in source for mark in marks) else 0
            if (candidate := (score, files.model_type in each.model_types)) > best_score:
                best, best_score, signature = each, candidate, marks
    if best is None:
        return None, "nowhere: the chat template has no known format"
    if best_score[0]:
        return best, f"the chat template, which has {' and '.join(signature)}"
    return best, f"the model_type {files.model_type}"


def _find_think_tags(
    files: ModelFiles, source: str, tool_format: ToolFormat | None
) -> ThinkTags | None:
    if files.entry.think_tags is not None:
        return ThinkTags(*files.entry.think_tags) if files.entry.think_tags else None
    if tool_format is not None and tool_format.think is not None:
        marks = find_marks("".join(tool_format.think))
        if all(mark in source for mark in marks):
            return ThinkTags(*tool_format.think)
    # Some templates write only one of the usual tags.
    usual = THINK_TAGS[0]
    if usual.begin in source or usual.end in source:
        return usual
    return next((tags for tags in THINK_TAGS if tags.begin in source and tags.end in source), None)


def _find_switch(source: str) -> str | None:
    try:
        variables = template.find_variables(source)
    except ChatTemplateError:
        return None
    return next((name for name in _SWITCHES if name in variables), None)
