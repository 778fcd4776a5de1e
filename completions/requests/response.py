"""The body of POST /v1/responses: a chat whose messages are items.

After the body, everything is a chat's: its fields get the values of a chat completion, which makes
the request.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from completions.chat.tools import FUNCTION
from completions.contract.sampling import MAX_TOP_LOGPROBS
from completions.exceptions import CONTEXT_EXCEEDED, FieldError
from completions.models.conversations import Item
from completions.requests.chat import ChatRequestObject
from completions.requests.context import Context
from completions.requests.conversation import ConversationFields
from completions.requests.conversion import (
    CHAT,
    NOT_IN_PROMPT,
    ConversionObject,
    CountedPrompt,
    make_request,
)
from completions.requests.fields.base import BooleanField, ChoiceField, IntegerField, T, TextField
from completions.requests.fields.chat.tools import MAX_TOOLS
from completions.requests.fields.conversions.items import (
    CALLS,
    OUTPUTS,
    ItemField,
    ItemsField,
    make_messages,
)
from completions.requests.fields.conversions.response_fields import (
    LOGPROBS,
    RESPONSE_TOOL,
    ConversationField,
    IncludeField,
    ReasoningObject,
    ResponseStreamOptionsObject,
    ResponseToolChoiceField,
    TextObject,
)
from completions.requests.fields.ignored import IgnoredFields, UnusedField
from completions.requests.fields.lists import ListField
from completions.requests.fields.metadata import MetadataField
from completions.requests.fields.returns import ReturnFields
from completions.requests.fields.routing import RoutingFields
from completions.requests.fields.sampling import SamplingFields
from completions.requests.fields.window import FLEX, DeadlineFields
from completions.requests.generation import GenerationRequest, ResponseSettings
from completions.responses.compaction import COMPACTION, UnsealError, unseal

_SHOWN: Final = (
    "instructions", "previous_response_id", "temperature", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "max_output_tokens", "max_tool_calls", "truncation",
    "store", "background", "user", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
"""Fields that the response repeats as they are."""


class ResponseFields(ConversionObject[T]):
    """What a prompt is made of."""

    renamed = (
        (re.compile(r"^messages\b"), "input"),
        (re.compile(r"^max_(completion_)?tokens$"), "max_output_tokens"),
        (re.compile(r"^(reasoning_effort|thinking(\.budget_tokens)?)$"), "reasoning.effort"),
        (re.compile(r"^response_format(\.json_schema)?\b"), "text.format"),
        (re.compile(r"^(grammar(\.value)?|regex|ebnf)\b"), "text.format.definition"),
        (re.compile(r"^(tools\[\d+\])\.(function|custom)\b"), r"\1"),
        (re.compile(r"\bformat\.grammar\.definition$"), "format.definition"),
    )
    alike = ("tools", "tool_choice", "stream_options", "background", "close")
    unsupported = {
        "messages": "Use input.",
        "max_tokens": "Use max_output_tokens.",
        "max_completion_tokens": "Use max_output_tokens.",
        "response_format": "Use text.format.",
        "reasoning_effort": "Use reasoning.effort.",
        "n": "A response has one answer; send several requests.",
        "prompt": "Send input: this server stores no templates of prompts.",
        "context_management": "Use truncation, or POST /v1/responses/compact.",
        "moderation": "Omit it: nothing is moderated.",
        "logprobs": f'Use include: ["{LOGPROBS}"].',
    }

    input = ItemsField(
        "The new items of the conversation; a string is a user's message.", child=ItemField()
    )
    instructions = TextField("A system message before all items; later responses do not have it.")
    previous_response_id = TextField("The stored response that this one goes on from.")
    conversation = ConversationField(
        "The conversation whose items come first, and that gets the new ones once the response has "
        "ended."
    )
    reasoning = ReasoningObject("How much the model thinks.")
    text = TextObject("What the text must match.")
    tools = ListField(
        "Up to 128 functions and custom tools that the model may call, as in chat completions.",
        child=RESPONSE_TOOL,
        max_length=MAX_TOOLS,
    )
    tool_choice = ResponseToolChoiceField(
        'none, auto, required, {"type": "function", "name"}, the same with custom, or '
        '{"type": "allowed_tools", "mode", "tools"}; default auto.'
    )
    parallel_tool_calls = ChatRequestObject.parallel_tool_calls
    truncation = ChoiceField(
        "auto: where the items do not fit the context, leave out the oldest turns.",
        choices=["auto", "disabled"],
        default="disabled",
    )
    chat_template_kwargs = ConversationFields.chat_template_kwargs

    def make_chat(self, values: Self, context: Context) -> ChatRequestObject:
        """Return the values of a chat's fields that mean the same. Raises FieldError."""
        _check_earlier(values)
        messages = read_messages(values, context)
        reasoning, text = values.reasoning, values.text
        return self.fill_chat(
            values,
            context,
            messages=messages,
            reasoning_effort=reasoning.effort if reasoning else None,
            **_make_constraint(text.format if text else None),
        )


class ResponsesRequestObject(ResponseFields[GenerationRequest]):
    store = BooleanField(
        "Keep the response, so that it can be fetched, streamed again and continued.", default=True
    )
    metadata = MetadataField("Up to 16 pairs of texts, which the response repeats.")
    background = BooleanField(
        "Answer at once with a response that is queued; retrieve it, or read its stream, later.",
        default=False,
    )
    stream = ReturnFields.stream
    stream_options = ResponseStreamOptionsObject("Only with stream.")
    close = BooleanField(
        "true: a text under a constraint, and the input of a custom tool, are whole also where "
        "max_output_tokens ends the response. Refused if that is too small. Default as in "
        "models.toml."
    )
    max_tool_calls = UnusedField(
        IntegerField("No effect: the server runs no tools.", min_value=1, max_value=1_000_000)
    )
    max_output_tokens = IntegerField(
        "Most tokens to generate, reasoning included; default: to the end of the context.",
        min_value=1,
    )
    include = IncludeField(
        f"{LOGPROBS}: log probabilities of the text's tokens.", child=TextField()
    )
    top_logprobs = IntegerField(
        "With these log probabilities: this many of the likeliest tokens too.",
        default=0,
        min_value=0,
        max_value=MAX_TOP_LOGPROBS,
    )
    temperature = SamplingFields.temperature
    top_p = SamplingFields.top_p
    top_k = SamplingFields.top_k
    min_p = SamplingFields.min_p
    presence_penalty = SamplingFields.presence_penalty
    frequency_penalty = SamplingFields.frequency_penalty
    repetition_penalty = SamplingFields.repetition_penalty
    seed = SamplingFields.seed
    stop = SamplingFields.stop
    priority = RoutingFields.priority
    cache_salt = RoutingFields.cache_salt
    completion_window = DeadlineFields.completion_window
    on_late = DeadlineFields.on_late
    service_tier = DeadlineFields.service_tier
    user = UnusedField(IgnoredFields.user)
    safety_identifier = UnusedField(IgnoredFields.safety_identifier)
    prompt_cache_key = UnusedField(IgnoredFields.prompt_cache_key)
    prompt_cache_retention = UnusedField(IgnoredFields.prompt_cache_retention)

    def make(self, values: Self, context: Context) -> GenerationRequest:
        _check(values)
        chat = self.make_chat(values, context).change(
            max_completion_tokens=values.max_output_tokens,
            logprobs=bool(values.include),
            top_logprobs=values.top_logprobs if values.include else None,
        )
        request = _make_fitting(chat, context, values.truncation == "auto")
        before: Sequence[Item] = ()
        if (earlier := context.earlier).is_local:  # nothing else will know these
            before = [{name: item[name] for name in item if name != "id"} for item in earlier.items]
        response = ResponseSettings(
            shown=_show(values, context),
            items=[*before, *(values.input or ())],
            store=values.store,
            previous_id="" if earlier.is_local else values.previous_response_id or "",
            conversation_id=values.conversation,
            last_item=context.earlier.last_item,
        )
        ignored = (*request.ignored, *self.list_unused(context))
        return replace(request, response=response, ignored=ignored)


class InputTokensRequestObject(ResponseFields[CountedPrompt]):
    unsupported = {
        **dict.fromkeys(ResponsesRequestObject.fields, NOT_IN_PROMPT),
        **ResponseFields.unsupported,
    }

    def make(self, values: Self, context: Context) -> CountedPrompt:
        chat = self.make_chat(values, context)
        if values.truncation == "auto":
            count = _make_fitting(chat, context, truncates=True).job.prompt_tokens
        else:
            count = CHAT.count_tokens(chat, context)
        return CountedPrompt(count, self.list_unused(context))


def read_messages(values: Any, context: Context) -> list[Mapping[str, Any]]:
    """Return the messages of a chat that the instructions, the earlier items and the new ones are.
    Raises FieldError."""
    messages: list[Mapping[str, Any]] = []
    if values.instructions:
        messages.append({"role": "system", "content": values.instructions})
    given, owner = context.given, context.principal.organization_id
    before = "conversation" if given.get("conversation") else "previous_response_id"
    items = [item for each in context.earlier.items for item in _open_item(each, owner, before)]
    _check_outputs(context.earlier.items, values.input or ())
    for index, each in enumerate(values.input or ()):
        items += _open_item(each, owner, f"input[{index}].encrypted_content")
    messages += make_messages(items)
    if not messages:
        raise FieldError("this field is required.", "input", code="missing_required_parameter")
    return messages


def _check_outputs(earlier: Sequence[Item], given: Sequence[Item]) -> None:
    """Raise FieldError for an output whose call is in no item. A compaction may stand for it."""
    items = (*earlier, *given)
    if any(item["type"] == COMPACTION for item in items):
        return
    calls = {item["call_id"] for item in items if item["type"] in CALLS}
    for index, item in enumerate(given):
        if item["type"] in OUTPUTS and item["call_id"] not in calls:
            message = (
                f"No tool call found for function call output with call_id {item['call_id'][:100]}."
                " Send the call too, or the previous_response_id of the response that has it."
            )
            raise FieldError(message, f"input[{index}].call_id")


def _open_item(item: Item, owner: int, path: str) -> Sequence[Item]:
    """Return what an item stands for: a compaction for the items that it holds. Raises
    FieldError."""
    if item["type"] != COMPACTION:
        return (item,)
    try:
        return unseal(item["encrypted_content"], owner)
    except UnsealError as error:
        message = (
            "this is not the content of a compaction that this server made for your organization. "
            "Send it as POST /v1/responses/compact returned it, or the items themselves."
        )
        raise FieldError(message, path) from error


def _check_earlier(values: ResponseFields[T]) -> None:
    if values.conversation is not None and values.previous_response_id is not None:
        message = "cannot be combined with conversation. Send only one."
        raise FieldError(message, "previous_response_id")


def _check(values: ResponsesRequestObject) -> None:
    if values.background and not values.store:
        raise FieldError("needs store: true; add it or leave this out.", "background")
    if values.top_logprobs and not values.include:
        message = f'needs include: ["{LOGPROBS}"]; add it or leave this out.'
        raise FieldError(message, "top_logprobs")


def _make_constraint(form: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the field of a chat that constrains the text, by name."""
    match form:
        case {"type": "json_schema", **schema}:
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case {"type": "json_object"}:
            return {"response_format": form}
        case {"type": "grammar", "syntax": "lark", "definition": text}:
            return {"grammar": {"type": "lark", "value": text}}
        case {"type": "grammar", "syntax": syntax, "definition": text}:
            return {syntax: text}
    return {}


def _make_fitting(chat: ChatRequestObject, context: Context, truncates: bool) -> GenerationRequest:
    """Return the request of a chat, with `truncates` without the oldest turns that do not fit the
    context. Raises FieldError and APIError."""
    messages: list[Mapping[str, object]] = chat.messages
    # A turn begins with a user's message, so that no call is parted from its output.
    turns = [index for index, message in enumerate(messages) if message["role"] == "user"]
    cuts, middle = [0, *(turns[1:] if truncates else ())], 0
    best: GenerationRequest | None = None
    while cuts:
        kept = [
            message
            for index, message in enumerate(messages)
            if index >= cuts[middle] or message["role"] == "system"
        ]
        try:
            best = make_request(chat.change(messages=kept), context)
            cuts = cuts[:middle]
        except FieldError as error:
            cuts = cuts[middle + 1 :]
            if error.code != CONTEXT_EXCEEDED or (best is None and not cuts):
                raise
        middle = len(cuts) // 2
    assert best is not None
    return best


def _show(values: ResponsesRequestObject, context: Context) -> dict[str, Any]:
    """Return the fields that the response repeats, with their defaults."""
    given, reasoning = context.given, values.reasoning
    form = values.text.format if values.text else None
    unsaid: Mapping[str, Mapping[str, object]] = {
        FUNCTION: {"description": None, "parameters": None, "strict": False},
        "json_schema": {"description": None, "strict": False},
    }
    shown_form = {**unsaid.get(form["type"], {}), **form} if form else {"type": "text"}
    tools: Any = given.get("tools") or ()
    return {
        **{name: getattr(values, name) for name in _SHOWN},
        "conversation": values.conversation and {"id": values.conversation},
        "metadata": values.metadata or {},
        "tools": [{**unsaid.get(tool["type"], {}), **tool} for tool in tools],
        "tool_choice": given.get("tool_choice") or "auto",
        "parallel_tool_calls": values.parallel_tool_calls is not False,
        "text": {"format": shown_form},
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "service_tier": FLEX if values.service_tier == FLEX else "default",
    }
