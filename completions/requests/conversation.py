"""The fields that become a chat's prompt, in chat completions and in tokenization."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.chat_style import find_chat_style
from completions.chat.conversation import render_prompt
from completions.chat.grammar import ToolCalls
from completions.chat.prompt_text import PromptText
from completions.chat.reasoning import AUTO, DISABLED, ENABLED
from completions.chat.template import ChatTemplateError
from completions.chat.tools import NONE, Tool
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    SHOWN_NAME,
    ChoiceField,
    IntegerField,
    ObjectField,
    T,
)
from completions.requests.fields.chat.messages import ChatMessageField, MessagesField
from completions.requests.fields.chat.tools import (
    MAX_TOOLS,
    ToolChoiceField,
    ToolObject,
    parse_choice,
)
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import StrictObject
from completions.requests.model import ModelRequestObject

NO_THOUGHTS = (
    "this model does not think. Leave this out, or use a model with the capability `thinking`."
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_VARIABLES = 64
TEMPLATE_FIELDS = ("thinking", "chat_template_kwargs")
"""Fields that only the model's template uses."""


@dataclass(frozen=True, slots=True)
class Thinking:
    type: str = AUTO
    budget_tokens: int | None = None


class ThinkingObject(StrictObject[Thinking | None]):
    type = ChoiceField(
        "auto leaves it to the model's template.", choices=[ENABLED, DISABLED, AUTO], required=True
    )
    budget_tokens = IntegerField("Tokens of reasoning after which the answer begins.", min_value=1)

    def check(self, values: Self) -> Thinking:
        thinking = Thinking(values.type, values.budget_tokens)
        if thinking.type == DISABLED and thinking.budget_tokens is not None:
            raise FieldError(f"needs type {ENABLED} or {AUTO}.", "budget_tokens")
        return thinking


class ConversationFields(ModelRequestObject[T]):
    always_long = True  # a template and a tokenizer run over the messages

    messages = MessagesField(
        "The conversation, put into the model's chat template; a string is a prompt.",
        child=ChatMessageField(),
        not_empty=True,
    )
    tools = ListField(
        "Up to 128 functions and custom tools that the model may call. Arguments match "
        "`parameters`. A schema that cannot be enforced is refused if `strict` is true; otherwise "
        "any object is accepted, and x-ignored-params names the schema. The input of a custom tool "
        "matches its grammar.",
        child=ToolObject(),
        max_length=MAX_TOOLS,
    )
    tool_choice = ToolChoiceField(
        'none, auto, required, {"type": "function", "function": {"name"}}, the same with custom, '
        'or {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}; default auto.'
    )
    thinking = ThinkingObject('{"type": enabled, disabled or auto, "budget_tokens"}.')
    chat_template_kwargs = ObjectField(
        "Variables of the model's chat template; x-ignored-params names those that it "
        "does not read."
    )

    def make_calls(
        self, values: Self, files: ModelFiles, tools: Sequence[Tool], parallel: bool | None = None
    ) -> ToolCalls | None:
        """Return the calls that may come; None for none. Raises FieldError."""
        choice = parse_choice(values.tool_choice, parallel, tools)
        allowed = choice.filter_tools(tuple(tools))
        if choice.mode == NONE or not allowed:
            return None
        tool_format = find_chat_style(files).tool_format
        if tool_format is None:
            message = 'this model calls no tools; send tool_choice "none" or use another model.'
            raise FieldError(message, "tools", code="unsupported_parameter")
        return ToolCalls(tool_format, allowed, choice)

    def list_unread(self, values: Self, context: Context) -> list[str]:
        """Return paths of variables that this model's template does not read, and of what is
        ignored in messages. Raises FieldError."""
        files = context.model.files
        source = files.choose_template(bool(values.tools)) or ""
        variables = _list_unread_variables(values.chat_template_kwargs or {}, source)
        messages = ConversationFields.messages.list_ignored_paths(context.given.get("messages"))
        return [*variables, *messages]

    def render_conversation(
        self,
        values: Self,
        files: ModelFiles,
        calls: ToolCalls | None,
        tools: Sequence[Tool],
        add_generation_prompt: bool,
    ) -> PromptText:
        """Return the messages as text, up to where the answer begins. Raises FieldError."""
        thinking: Thinking = values.thinking or Thinking()
        variables = _add_switch(values.chat_template_kwargs or {}, files, thinking.type)
        tool_format = find_chat_style(files).tool_format
        try:
            return render_prompt(
                files,
                values.messages,
                tools if calls else (),
                tool_format,
                variables,
                add_generation_prompt,
            )
        except ChatTemplateError as error:
            raise FieldError(f"{error}.", "messages") from error


def _list_unread_variables(variables: Mapping[str, object], source: str) -> list[str]:
    if len(variables) > MAX_VARIABLES:
        message = f"has {len(variables)} variables; it may have at most {MAX_VARIABLES}."
        raise FieldError(message, "chat_template_kwargs")
    for name in variables:
        path = f"chat_template_kwargs.{name[:SHOWN_NAME]}"
        if name in template.RESERVED:
            raise FieldError("is set by the server; leave it out.", path)
        if not _VARIABLE.fullmatch(name):
            message = "is not a variable's name: use up to 64 letters, digits and _."
            raise FieldError(message, path)
    if not variables:
        return []
    try:
        read = template.find_variables(source)
    except ChatTemplateError as error:
        raise FieldError(f"{error}.", "messages") from error
    return [f"chat_template_kwargs.{name}" for name in variables if name not in read]


def _add_switch(
    variables: Mapping[str, object], files: ModelFiles, mode: str
) -> Mapping[str, object]:
    """Return the variables, with the template's thinking switch if it has one."""
    style = find_chat_style(files)
    if mode == AUTO:
        return variables
    if style.think_tags is None:
        if mode == ENABLED:
            raise FieldError(NO_THOUGHTS, "thinking.type", code="unsupported_value")
    elif style.thinking_switch is None and mode == DISABLED:
        message = "this model always thinks. Leave this out, or use another model."
        raise FieldError(message, "thinking.type", code="unsupported_value")
    if style.thinking_switch is None:
        return variables
    value = style.find_switch_value(mode == ENABLED)
    given = variables.get(style.thinking_switch, value)
    if given != value or type(given) is not type(value):
        message = f"contradicts chat_template_kwargs.{style.thinking_switch}. Send only one."
        raise FieldError(message, "thinking.type")
    return {**variables, style.thinking_switch: value}
