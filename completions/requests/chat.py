"""The body of POST /v1/chat/completions: what it adds to the fields that both routes take."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from completions.accounts.keys import Principal
from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.conversation import prompt_text
from completions.chat.grammar import BudgetError, Calls, Thoughts, answer_constraint
from completions.chat.template import ChatTemplateError
from completions.chat.thinking import AUTO, DISABLED, ENABLED, Marks
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import NONE, REQUIRED
from completions.errors import FieldError
from completions.requests import turns
from completions.requests.fields import (
    SHOWN_NAME,
    BooleanField,
    ChoiceField,
    IntegerField,
    ListField,
    ObjectField,
    StrictField,
    StrictSerializer,
)
from completions.requests.generation import (
    OF_OTHER_SYSTEMS,
    GenerationRequestSerializer,
    check_length,
)
from completions.requests.messages import (
    NOTES,
    ChatMessageSerializer,
    check_answers,
    for_template,
)
from completions.requests.prompt import kind
from completions.requests.token_fields import TokenIdsField, token_ids
from completions.requests.tools import (
    MAX_TOOLS,
    ToolChoiceField,
    ToolSerializer,
    choice_of,
    tools_of,
)

_PROMPTS = ("messages", "prompt", "input_ids")
_OF_TEMPLATES = ("thinking", "chat_template_kwargs")
_NO_THOUGHTS = (
    "this model does not think. Leave it out, or use a model with the capability `thinking`."
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_VARIABLES = 64
_TAIL = 16
"""Tokens at the end of a prompt of ids in which the mark of open thoughts is looked for."""
_INSTEAD = {
    **OF_OTHER_SYSTEMS,
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


class ThinkingSerializer(StrictSerializer):
    type = ChoiceField(
        choices=[ENABLED, DISABLED, AUTO], help_text="auto leaves it to the model's template."
    )
    budget_tokens = IntegerField(
        required=False, min_value=1, help_text="After so many tokens of thoughts the answer begins."
    )

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        if validated["type"] == DISABLED and validated["budget_tokens"] is not None:
            raise FieldError("invalid_value", "goes with thinking only.", "budget_tokens")
        return validated


class RawPromptField(StrictField, serializers.JSONField):
    """A prompt that no template is applied to: text, or token ids."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, TokenIdsField().to_schema()]}

    def to_internal_value(self, data: Any) -> str | list[Any]:
        if type(data) not in (str, list):
            message = f"must be a string or an array of token ids, not {kind(data)}."
            raise FieldError("invalid_type", message)
        return data  # type: ignore[no-any-return]

    def for_model(self, value: str | list[Any], model: ModelFiles) -> list[int]:
        if isinstance(value, str):
            return token_ids(model, value)
        return TokenIdsField().for_model(value, model)


class MessagesField(ListField):
    """Messages, or as in mistral.rs one text, to which no template is applied."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [super().to_schema(), {"type": "string"}]}

    def to_internal_value(self, data: Any) -> Any:
        return data if type(data) is str else super().to_internal_value(data)

    def for_model(self, value: str | list[Any], model: ModelFiles) -> list[Any]:
        """A text's token ids, else the messages."""
        return token_ids(model, value) if isinstance(value, str) else value


def check_message_count(count: int, max_model_len: int) -> None:
    """Raise FieldError for more messages than fit: each takes a token at least."""
    if count > max_model_len:
        message = f"holds {count} messages, more than the context of {max_model_len} tokens holds."
        raise FieldError("context_length_exceeded", message)


class ChatRequestSerializer(GenerationRequestSerializer):
    """Validated, it holds what GenerationRequestSerializer says, `prompt` as a batch of one,
    `calls` (Calls or None) and `thoughts` (Thoughts or None), which `constraint` provides for,
    `alternatives`: likeliest tokens to tell in each place, None for no log probabilities, and
    `unread`: paths of what has no effect, such as variables that the model's template does not
    read."""

    later_fields = _INSTEAD

    messages = MessagesField(
        child=ChatMessageSerializer(), required=False, min_length=1,
        help_text="The conversation, put into the model's chat template; a string is a prompt.",
    )  # fmt: skip
    prompt = RawPromptField(
        required=False, help_text="Instead of messages: text or token ids, used as they are."
    )
    input_ids = TokenIdsField(required=False, help_text="Instead of messages: token ids.")
    max_tokens = IntegerField(
        required=False, min_value=1,
        help_text="Most tokens to generate, per choice, thoughts included; default: to the end of "
        "the context.",
    )  # fmt: skip
    max_completion_tokens = IntegerField(
        required=False, min_value=1, help_text="The same as max_tokens."
    )
    tools = ListField(
        child=ToolSerializer(), required=False, max_length=MAX_TOOLS,
        help_text="Up to 128 functions that the model may call.",
    )  # fmt: skip
    tool_choice = ToolChoiceField(
        required=False,
        help_text='none, auto, required, {"type": "function", "function": {"name"}}, or '
        '{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}; default auto.',
    )
    parallel_tool_calls = BooleanField(
        required=False, help_text="false: one call per answer at most; default true."
    )
    thinking = ThinkingSerializer(
        required=False, help_text='{"type": enabled, disabled or auto, "budget_tokens"}.'
    )
    chat_template_kwargs = ObjectField(
        required=False,
        help_text="Variables of the model's chat template; those that it does not read are named "
        "in x-ignored-params.",
    )
    logprobs = BooleanField(
        default=False, help_text="Log probabilities of the tokens, in `choices[].logprobs.content`."
    )
    top_logprobs = IntegerField(
        required=False, min_value=0, max_value=20,
        help_text="With logprobs: of so many of the likeliest tokens too.",
    )  # fmt: skip
    separate_reasoning = BooleanField(
        default=True, help_text="Thoughts in reasoning_content; false: in content, marks included."
    )
    stream_reasoning = BooleanField(
        default=True, help_text="false: thoughts come in one piece, when they are complete."
    )

    @classmethod
    async def validate_request(cls, data: Any, principal: Principal) -> dict[str, Any]:
        """The validated body. In a thread: a template and a tokenizer run over the messages."""
        owner = principal.organization_id
        return await turns.current().run(owner, cls.of(data, principal).run_validation, data)

    def field_value(self, field: StrictField, value: Any, validated: dict[str, Any]) -> Any:
        if isinstance(field, MessagesField) and type(value) is list:
            check_message_count(len(value), self.files.max_model_len)
        return super().field_value(field, value, validated)

    def prompts(self, validated: Any) -> Sequence[Sequence[int]]:
        prompts: Sequence[Sequence[int]] = validated["prompt"]
        return prompts

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        source = self._source(validated)
        validated["alternatives"] = _alternatives(validated)
        validated["calls"] = self._calls(validated)
        options = self._template_options(validated)
        text, ids = self._prompt(source, validated, options)
        validated["prompt"] = [ids]
        self._settle_max_tokens(validated, source)
        validated["thoughts"] = self._thoughts(validated, text)
        validated = super().check(validated)
        self._compose(validated)
        return validated

    def _source(self, validated: dict[str, Any]) -> str:
        """The field that holds the prompt."""
        given = [name for name in _PROMPTS if validated[name] is not None]
        if not given:
            raise FieldError("missing_required_parameter", "this field is required.", "messages")
        if len(given) > 1:
            raise FieldError("invalid_value", f"cannot be combined with {given[0]}.", given[1])
        if not _is_raw(given[0], validated):
            check_answers(validated["messages"])
        else:
            for name in _OF_TEMPLATES:
                if validated[name] is not None:
                    raise FieldError("invalid_value", "goes with messages only.", name)
        return given[0]

    def _calls(self, validated: dict[str, Any]) -> Calls | None:
        validated["tools"] = tools = tools_of(validated["tools"] or ())
        choice = choice_of(validated["tool_choice"], validated["parallel_tool_calls"], tools)
        allowed = choice.allowed(tools)
        if choice.mode == NONE or not allowed:
            return None
        if self.files.tool_format is None:
            message = 'this model calls no tools; send tool_choice "none" or another model.'
            raise FieldError("unsupported_parameter", message, "tools")
        return Calls(TOOL_FORMATS[self.files.tool_format], allowed, choice)

    def _template_options(self, validated: dict[str, Any]) -> dict[str, Any]:
        """The variables of the template that thinking and chat_template_kwargs set."""
        options = dict(validated["chat_template_kwargs"] or {})
        validated["unread"] = [*self._unread(options), *_notes(validated["messages"])]
        wanted = (validated["thinking"] or {"type": AUTO})["type"]
        switch = self.files.thinking_switch
        if wanted == AUTO:
            return options
        if self.files.thinking_marks is None and wanted == ENABLED:
            raise FieldError("unsupported_value", _NO_THOUGHTS, "thinking.type")
        if switch is not None:
            value = wanted == ENABLED
            if options.setdefault(switch, value) is not value:
                message = f"contradicts chat_template_kwargs.{switch}."
                raise FieldError("invalid_value", message, "thinking.type")
        elif self.files.thinking_marks is not None and wanted == DISABLED:
            message = "this model always thinks; separate its thoughts, or use another model."
            raise FieldError("unsupported_value", message, "thinking.type")
        return options

    def _unread(self, options: Mapping[str, Any]) -> list[str]:
        """What is set of chat_template_kwargs without being read by this model's template."""
        if len(options) > MAX_VARIABLES:
            message = f"may hold at most {MAX_VARIABLES} variables."
            raise FieldError("invalid_value", message, "chat_template_kwargs")
        for name in options:
            path = f"chat_template_kwargs.{name[:SHOWN_NAME]}"
            if name in template.RESERVED:
                raise FieldError("invalid_value", "is set by the request itself.", path)
            if not _VARIABLE.fullmatch(name):
                raise FieldError("invalid_value", "no variable has such a name.", path)
        try:
            read = template.variables_of(self.files.chat_template or "") if options else ()
        except ChatTemplateError as error:
            raise FieldError("invalid_value", f"{error}.", "messages") from error
        return [f"chat_template_kwargs.{name}" for name in options if name not in read]

    def _prompt(
        self, source: str, validated: dict[str, Any], options: dict[str, Any]
    ) -> tuple[str, list[int]]:
        """The prompt's end as text, and its token ids."""
        if _is_raw(source, validated):
            ids: list[int] = validated[source]
            if not ids:
                raise FieldError("empty_array", "must hold at least one token.", source)
            return self.files.tokenizer.decode(ids[-_TAIL:], skip_special_tokens=False), ids
        messages = [for_template(message) for message in validated["messages"]]
        calls: Calls | None = validated["calls"]
        written = calls.format if calls else TOOL_FORMATS.get(self.files.tool_format or "")
        tools = validated["tools"] if calls else ()
        try:
            text = prompt_text(self.files, messages, tools, written, options)
        except ChatTemplateError as error:
            raise FieldError("invalid_value", f"{error}.", "messages") from error
        return text, token_ids(self.files, text, "messages", special=False)

    def _settle_max_tokens(self, validated: dict[str, Any], source: str) -> None:
        (prompt,) = validated["prompt"]
        given, newer = validated["max_tokens"], validated["max_completion_tokens"]
        if given is not None and newer is not None and given != newer:
            message = f"is not max_tokens ({given}); give one of them."
            raise FieldError("invalid_value", message, "max_completion_tokens")
        wanted = given if newer is None else newer
        check_length([prompt], wanted or 1, self.files.max_model_len, source)
        validated["max_tokens"] = wanted or self.files.max_model_len - len(prompt)

    def _thoughts(self, validated: dict[str, Any], prompt: str) -> Thoughts | None:
        thinking = validated["thinking"] or {"type": AUTO, "budget_tokens": None}
        wanted, budget = thinking["type"], thinking["budget_tokens"]
        if self.files.thinking_marks is None:
            if budget is not None:
                raise FieldError("unsupported_value", _NO_THOUGHTS, "thinking.budget_tokens")
            return None
        marks = Marks(*self.files.thinking_marks)
        if wanted == DISABLED or marks.closed_in(prompt):
            return None
        is_open = marks.open_in(prompt)
        end_id = self.files.tokenizer.token_to_id(marks.end)
        if budget is not None and budget >= validated["max_tokens"]:
            budget = None  # the length ends them before
        return Thoughts(marks, is_open, wanted == ENABLED and not is_open, budget, end_id)

    def _compose(self, validated: dict[str, Any]) -> None:
        """Make room in the constraint for thoughts and calls."""
        calls, constraint = validated["calls"], validated["constraint"]
        if calls is not None and constraint is not None and calls.choice.mode == REQUIRED:
            message = "cannot be combined with a tool_choice that requires a call."
            raise FieldError("conflicting_constraints", message, constraint.field)
        whitespace = validated["json_whitespace"] or self.files.json_whitespace
        try:
            whole = answer_constraint(validated["thoughts"], calls, constraint, whitespace)
        except BudgetError as error:
            message = "this model's thoughts cannot be counted: their end mark is not one token."
            raise FieldError("unsupported_value", message, "thinking.budget_tokens") from error
        validated["constraint"] = whole
        self._show_marks(validated)

    def _show_marks(self, validated: dict[str, Any]) -> None:
        """Marks that are special tokens must stay in the text, for the parser to find them;
        `hidden` are the special tokens that it then takes out."""
        calls, thoughts = validated["calls"], validated["thoughts"]
        marks = set(calls.format.marks) if calls else set()
        marks |= {thoughts.marks.begin, thoughts.marks.end} if thoughts else set()
        added = self.files.tokenizer.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special}
        validated["hidden"] = []
        if validated["skip_special_tokens"] and marks & special:
            validated["skip_special_tokens"] = False
            validated["hidden"] = sorted(special - marks)


def _is_raw(source: str, validated: Mapping[str, Any]) -> bool:
    """Whether the prompt is token ids already."""
    return source != "messages" or not validated[source] or type(validated[source][0]) is int


def _notes(messages: Any) -> list[str]:
    """Paths of what clients noted in messages."""
    noted = [i for i, each in enumerate(messages or ()) if type(each) is dict and each.get(NOTES)]
    return [f"messages[{i}].{NOTES}" for i in noted[:MAX_VARIABLES]]


def _alternatives(validated: Mapping[str, Any]) -> int | None:
    """How many likeliest tokens to tell; None without log probabilities."""
    top: int | None = validated["top_logprobs"]
    if validated["logprobs"]:
        return top or 0
    if top is not None:
        raise FieldError("invalid_value", "goes with logprobs: true only.", "top_logprobs")
    return None
