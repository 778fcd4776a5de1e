"""The body of POST /v1/chat/completions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from completions.chat import template
from completions.chat.conversation import prompt_text
from completions.chat.grammar import BudgetError, Calls, Thoughts, answer_constraint
from completions.chat.template import ChatTemplateError
from completions.chat.thinking import AUTO, DISABLED, ENABLED, Marks
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import NONE, REQUIRED, Tool
from completions.contract.sampling import MAX_TOP_LOGPROBS
from completions.exceptions import FieldError
from completions.requests.fields.base import (
    SHOWN_NAME,
    BooleanField,
    ChoiceField,
    IntegerField,
    ListField,
    ObjectField,
)
from completions.requests.fields.ignored import FOREIGN_NAMES
from completions.requests.fields.messages import (
    ChatMessageObject,
    MessagesField,
    check_answers,
    paths_of_notes,
)
from completions.requests.fields.objects import StrictObject, Values
from completions.requests.fields.prompt import RawPromptField
from completions.requests.fields.tokens import TokenIdsField, token_ids
from completions.requests.fields.tools import (
    MAX_TOOLS,
    ToolChoiceField,
    ToolObject,
    choice_of,
    placed,
)
from completions.requests.generation import (
    ChatSettings,
    GenerationFields,
    GenerationRequest,
    check_context,
)
from completions.requests.judging import Looser

_PROMPTS = ("messages", "prompt", "input_ids")
_TEMPLATE_FIELDS = ("thinking", "chat_template_kwargs")
_NO_THOUGHTS = (
    "this model does not think. Leave this out, or use a model with the capability `thinking`."
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_VARIABLES = 64
_TAIL = 16
"""How many tokens at the end of a raw prompt are searched for the mark that opens thoughts."""


@dataclass(frozen=True, slots=True)
class Thinking:
    type: str = AUTO
    budget_tokens: int | None = None


class ThinkingObject(StrictObject):
    type = ChoiceField(
        "auto leaves it to the model's template.", choices=[ENABLED, DISABLED, AUTO], required=True
    )
    budget_tokens = IntegerField("Tokens of thoughts after which the answer begins.", min_value=1)

    def check(self, values: Values) -> Thinking:
        thinking = Thinking(**values)
        if thinking.type == DISABLED and thinking.budget_tokens is not None:
            raise FieldError(f"needs type {ENABLED} or {AUTO}.", "budget_tokens")
        return thinking


class ChatRequestObject(GenerationFields):
    always_long = True  # a template and a tokenizer run over the messages
    unsupported = {
        **FOREIGN_NAMES,
        "functions": "Use tools.",
        "function_call": "Use tool_choice.",
        **dict.fromkeys(
            ("reasoning_effort", "reasoning", "enable_thinking"),
            'Use thinking: {"type": "enabled"} or {"type": "disabled"}.',
        ),
        **dict.fromkeys(
            ("echo", "suffix", "best_of", "truncate_sequence"), "POST /v1/completions takes it."
        ),
        **dict.fromkeys(
            ("modalities", "audio", "prediction", "verbosity", "web_search_options"),
            "This service answers with text alone; omit it.",
        ),
        "chat_template": "The model's own template is used.",
    }

    messages = MessagesField(
        "The conversation, put into the model's chat template; a string is a prompt.",
        child=ChatMessageObject(),
        not_empty=True,
    )
    prompt = RawPromptField("Instead of messages: text or token ids, used as they are.")
    input_ids = TokenIdsField("Instead of messages: token ids.")
    max_tokens = IntegerField(
        "Most tokens to generate, per choice, thoughts included; default: to the end of "
        "the context.",
        min_value=1,
    )
    max_completion_tokens = IntegerField("The same as max_tokens.", min_value=1)
    tools = ListField(
        "Up to 128 functions that the model may call. Arguments match `parameters`, unless "
        "`strict` is false, or it is absent and x-ignored-params names the schema as one that "
        "cannot be enforced.",
        child=ToolObject(),
        max_length=MAX_TOOLS,
    )
    tool_choice = ToolChoiceField(
        'none, auto, required, {"type": "function", "function": {"name"}}, or '
        '{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}; default auto.'
    )
    parallel_tool_calls = BooleanField("false: at most one call per answer; default true.")
    thinking = ThinkingObject('{"type": enabled, disabled or auto, "budget_tokens"}.')
    chat_template_kwargs = ObjectField(
        "Variables of the model's chat template; x-ignored-params names those that it "
        "does not read."
    )
    logprobs = BooleanField(
        "Log probabilities of the tokens, in `choices[].logprobs.content`.", default=False
    )
    top_logprobs = IntegerField(
        "With logprobs: this many of the likeliest tokens too.",
        min_value=0,
        max_value=MAX_TOP_LOGPROBS,
    )
    separate_reasoning = BooleanField(
        "Thoughts in reasoning_content; false: in content, marks included.", default=True
    )
    stream_reasoning = BooleanField(
        "false: thoughts come in one piece, when they are complete.", default=True
    )

    def check(self, values: Values) -> GenerationRequest:
        source = _source(values)
        top_logprobs = _top_logprobs(values)
        tools = placed(values["tools"] or ())
        calls = self._calls(values, tools)
        thinking: Thinking = values["thinking"] or Thinking()
        variables = values["chat_template_kwargs"] or {}
        notes = paths_of_notes(self.initial_data.get("messages"), MAX_VARIABLES)
        unread = [*self._unread(variables), *notes]
        variables = self._with_switch(variables, thinking.type)
        text_end, ids = self._prompt(source, values, calls, tools, variables)
        context, given = self.requested.files.max_model_len, self.given_length(values)
        check_context([ids], given or 1, context, source)
        max_tokens = given or context - len(ids)
        thoughts = self._thoughts(thinking, text_end, max_tokens)
        request = self.request(
            values,
            [ids],
            max_tokens=max_tokens,
            logprobs=(top_logprobs, False),
            ignored_too=() if tools else ("parallel_tool_calls",),
        )
        request = replace(request, ignored=(*request.ignored, *unread))
        return self._with_answer(request, values, calls, thoughts)

    def _calls(self, values: Values, tools: Sequence[Tool]) -> Calls | None:
        choice = choice_of(values["tool_choice"], values["parallel_tool_calls"], tools)
        allowed = choice.allowed(tuple(tools))
        if choice.mode == NONE or not allowed:
            return None
        tool_format = self.requested.files.entry.tool_format
        if tool_format is None:
            message = 'this model calls no tools; send tool_choice "none" or use another model.'
            raise FieldError(message, "tools", code="unsupported_parameter")
        return Calls(TOOL_FORMATS[tool_format], allowed, choice)

    def _unread(self, variables: Mapping[str, Any]) -> list[str]:
        """Paths of the variables that this model's template does not read."""
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
            read = template.variables_of(self.requested.files.chat_template or "")
        except ChatTemplateError as error:
            raise FieldError(f"{error}.", "messages") from error
        return [f"chat_template_kwargs.{name}" for name in variables if name not in read]

    def _with_switch(self, variables: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
        """The variables, with the template's thinking switch if it has one."""
        files = self.requested.files
        if wanted == AUTO:
            return variables
        if files.entry.thinking_marks is None:
            if wanted == ENABLED:
                raise FieldError(_NO_THOUGHTS, "thinking.type", code="unsupported_value")
        elif files.entry.thinking_switch is None and wanted == DISABLED:
            message = "this model always thinks. Leave this out, or use another model."
            raise FieldError(message, "thinking.type", code="unsupported_value")
        if files.entry.thinking_switch is None:
            return variables
        value = wanted == ENABLED
        if variables.get(files.entry.thinking_switch, value) is not value:
            message = (
                f"contradicts chat_template_kwargs.{files.entry.thinking_switch}; send one of them."
            )
            raise FieldError(message, "thinking.type")
        return {**variables, files.entry.thinking_switch: value}

    def _prompt(
        self,
        source: str,
        values: Values,
        calls: Calls | None,
        tools: Sequence[Tool],
        variables: Mapping[str, Any],
    ) -> tuple[str, list[int]]:
        """The end of the prompt as text, and its token ids."""
        files = self.requested.files
        if _is_raw(source, values):
            ids: list[int] = values[source]
            if not ids:
                raise FieldError("must hold at least one token.", source, code="empty_array")
            return files.tokenizer.decode(ids[-_TAIL:], skip_special_tokens=False), ids
        written = calls.format if calls else TOOL_FORMATS.get(files.entry.tool_format or "")
        try:
            text = prompt_text(files, values[source], tools if calls else (), written, variables)
        except ChatTemplateError as error:
            raise FieldError(f"{error}.", "messages") from error
        return text, token_ids(files, text, "messages", special=False)

    def _thoughts(self, thinking: Thinking, prompt: str, max_tokens: int) -> Thoughts | None:
        files, budget = self.requested.files, thinking.budget_tokens
        if files.entry.thinking_marks is None:
            if budget is not None:
                raise FieldError(_NO_THOUGHTS, "thinking.budget_tokens", code="unsupported_value")
            return None
        marks = Marks(*files.entry.thinking_marks)
        if thinking.type == DISABLED or marks.closed_in(prompt):
            return None
        is_open = marks.open_in(prompt)
        end_id = files.tokenizer.token_to_id(marks.end)
        if budget is not None and budget >= max_tokens:
            budget = None  # max_tokens ends the thoughts first
        required = thinking.type == ENABLED and not is_open
        return Thoughts(marks, is_open, required, budget, end_id)

    def _with_answer(
        self,
        request: GenerationRequest,
        values: Values,
        calls: Calls | None,
        thoughts: Thoughts | None,
    ) -> GenerationRequest:
        """The request with its `chat`, and with a constraint that leaves room for thoughts and
        calls."""
        files = self.requested.files
        constraint = request.constraint
        if calls is not None and constraint is not None and calls.choice.mode == REQUIRED:
            message = "cannot be combined with a tool_choice that requires a call."
            raise FieldError(message, constraint.named, code="conflicting_constraints")
        whitespace = values["json_whitespace"] or files.entry.json_whitespace
        given, looser = constraint, None
        try:
            constraint = answer_constraint(thoughts, calls, given, whitespace)
            if calls is not None and constraint is not None and (tools := calls.loosable):
                loose = answer_constraint(thoughts, calls.loosened(), given, whitespace)
                if loose is not None:
                    looser = Looser(loose, tuple(tool.schema_place for tool in tools))
        except BudgetError as error:
            message = "this model's thoughts cannot be counted: their end mark is not one token."
            path = "thinking.budget_tokens"
            raise FieldError(message, path, code="unsupported_value") from error
        sampling, hidden = request.sampling, list[str]()
        marks = set(calls.format.marks if calls else ())
        marks |= {thoughts.marks.begin, thoughts.marks.end} if thoughts else set()
        added = files.tokenizer.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special}
        if sampling.skip_special_tokens and marks & special:
            # The parser must find the marks, so it takes the other special tokens out itself.
            sampling = replace(sampling, skip_special_tokens=False)
            hidden = sorted(special - marks)
        chat = ChatSettings(
            calls=calls,
            thoughts=thoughts,
            hidden=hidden,
            separate_reasoning=values["separate_reasoning"],
            stream_reasoning=values["stream_reasoning"],
        )
        return replace(request, constraint=constraint, looser=looser, sampling=sampling, chat=chat)


def _source(values: Values) -> str:
    """The field that holds the prompt. Raises FieldError."""
    given = [name for name in _PROMPTS if values[name] is not None]
    if not given:
        raise FieldError("this field is required.", "messages", code="missing_required_parameter")
    if len(given) > 1:
        raise FieldError(f"cannot be combined with {given[0]}; send one of them.", given[1])
    if not _is_raw(given[0], values):
        check_answers(values["messages"])
        return given[0]
    for name in _TEMPLATE_FIELDS:
        if values[name] is not None:
            raise FieldError(f"needs messages, not {given[0]}.", name)
    return given[0]


def _is_raw(source: str, values: Values) -> bool:
    """Whether the prompt is token ids already."""
    return source != "messages" or not values[source] or type(values[source][0]) is int


def _top_logprobs(values: Values) -> int | None:
    """How many likeliest tokens to return at each position; None without log probabilities."""
    top: int | None = values["top_logprobs"]
    if values["logprobs"]:
        return top or 0
    if top is not None:
        raise FieldError("needs logprobs: true; add it or leave this out.", "top_logprobs")
    return None
