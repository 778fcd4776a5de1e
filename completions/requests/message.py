"""The bodies of POST /v1/messages and /v1/messages/count_tokens, Anthropic's Messages API.

A body becomes a chat completion's, which makes the request.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Self

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
from completions.requests.effort import EFFORTS
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    IntegerField,
    ObjectField,
    StorableObjectField,
    T,
)
from completions.requests.fields.chat.messages import ContentField, Message
from completions.requests.fields.chat.tools import MAX_TOOLS
from completions.requests.fields.conversions.blocks import (
    TOOL,
    TURN,
    MessageThinkingObject,
    MessageToolChoiceObject,
    TurnsField,
)
from completions.requests.fields.ignored import UnusedField
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import StrictObject
from completions.requests.fields.returns import ReturnFields
from completions.requests.fields.routing import RoutingFields
from completions.requests.fields.sampling import SamplingFields, StopField
from completions.requests.generation import GenerationRequest

_MORE_EFFORTS: Final[Mapping[str | None, str]] = {"xhigh": "high", "max": "high"}


class MessageFormatObject(StrictObject[Any]):
    type = ChoiceField("The type.", choices=["json_schema"], required=True)
    schema: StorableObjectField[dict[str, Any]] = StorableObjectField(
        "The JSON Schema that the text matches, as in chat completions.", required=True
    )


class OutputConfigObject(StrictObject[Any]):
    effort = ChoiceField(
        "As reasoning_effort in chat completions; xhigh and max mean high.",
        choices=[*EFFORTS, "xhigh", "max"],
    )
    format = MessageFormatObject("What the text must match.")


class MessageFields(ConversionObject[T]):
    """What a prompt is made of."""

    renamed = (
        (re.compile(r"^(max_completion_tokens)$"), "max_tokens"),
        (re.compile(r"^(continue_final_message|add_generation_prompt)$"), "messages"),
        (re.compile(r"^(stop)\b(?!_)"), "stop_sequences"),
        (re.compile(r"^(reasoning_effort)$"), "output_config.effort"),
        (re.compile(r"^(response_format)(\.json_schema)?\b"), "output_config.format"),
        (re.compile(r"^(tools\[\d+\])\.(function\.)?parameters\b"), r"\1.input_schema"),
        (re.compile(r"^(tools\[\d+\])\.function\b"), r"\1"),
    )
    alike = ("tools", "tool_choice", "thinking", "close")
    unsupported = {
        "container": "This server runs no code; omit it.",
        "mcp_servers": "This server calls no tools; send tools and call them yourself.",
        "context_management": "Send the messages that the model shall read.",
        **dict.fromkeys(("diagnostics", "inference_geo", "speed", "user_profile_id"), "Omit it."),
        "prompt": "Use messages.",
        "stop": "Use stop_sequences.",
        "max_completion_tokens": "Use max_tokens.",
        "response_format": "Use output_config.format.",
        "reasoning_effort": "Use output_config.effort.",
        "n": "A message has one answer; send several requests.",
    }

    messages = TurnsField(
        "The conversation: turns of `user`, `assistant` or `system`, each a text or content "
        "blocks. The answer continues a last turn of the assistant.",
        child=TURN,
        not_empty=True,
        required=True,
    )
    system = ContentField("A text, or text blocks, before all turns.")
    tools = ListField(
        "Up to 128 tools with `name` and `input_schema`, as the functions of chat completions.",
        child=TOOL,
        max_length=MAX_TOOLS,
    )
    tool_choice = MessageToolChoiceObject('{"type": auto, any, tool or none}; default auto.')
    thinking = MessageThinkingObject(
        '{"type": enabled, disabled or adaptive, "budget_tokens"}; default adaptive.'
    )
    output_config = OutputConfigObject("The effort, and the format of the text.")
    chat_template_kwargs = ConversationFields.chat_template_kwargs
    cache_control = UnusedField(ObjectField("No effect; prefixes are always cached."))

    def make_chat(self, values: Self, context: Context) -> ChatRequestObject:
        """Return the values of a chat's fields that mean the same."""
        messages: list[Message] = values.messages
        output = values.output_config or OutputConfigObject.fill({})
        if values.system:
            messages = [{"role": "system", "content": values.system}, *messages]
        effort: str | None = output.effort
        form = output.format and {
            "type": "json_schema",
            "json_schema": {"schema": output.format.schema},
        }
        return self.fill_chat(
            values,
            context,
            messages=messages,
            continue_final_message=messages[-1]["role"] == "assistant",
            reasoning_effort=_MORE_EFFORTS.get(effort, effort),
            response_format=form,
        )


class MessagesRequestObject(MessageFields[GenerationRequest]):
    max_tokens = IntegerField(
        "Most tokens to generate, thoughts included.", min_value=1, required=True
    )
    stop_sequences = StopField(
        "Up to 16 texts of 1-256 characters that end the answer, as `stop` in chat completions."
    )
    stream = ReturnFields.stream
    temperature = SamplingFields.temperature
    top_p = SamplingFields.top_p
    top_k = SamplingFields.top_k
    seed = SamplingFields.seed
    close = BooleanField(
        "true: a text under output_config.format is whole also where max_tokens ends the answer. "
        "Refused if that is too small. Default as in models.toml."
    )
    priority = RoutingFields.priority
    cache_salt = RoutingFields.cache_salt
    metadata = UnusedField(ObjectField("No effect."))
    service_tier = UnusedField(ChoiceField("No effect.", choices=["auto", "standard_only"]))

    def make(self, values: Self, context: Context) -> GenerationRequest:
        chat = self.make_chat(values, context).change(
            max_completion_tokens=values.max_tokens, stop=values.stop_sequences
        )
        request = make_request(chat, context)
        return replace(request, ignored=(*request.ignored, *self.list_unused(context)))


class CountTokensRequestObject(MessageFields[CountedPrompt]):
    unsupported = {
        **dict.fromkeys(MessagesRequestObject.fields, NOT_IN_PROMPT),
        **MessageFields.unsupported,
    }

    def make(self, values: Self, context: Context) -> CountedPrompt:
        count = CHAT.count_tokens(self.make_chat(values, context), context)
        return CountedPrompt(count, self.list_unused(context))
