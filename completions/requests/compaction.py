"""The body of POST /v1/responses/compact: a chat whose answer sums up its messages."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from msgspec import structs

from completions.requests.context import Context
from completions.requests.conversion import ConversionObject, make_request
from completions.requests.fields.base import TextField
from completions.requests.fields.conversions.items import ItemField, ItemsField
from completions.requests.fields.ignored import IgnoredFields, UnusedField
from completions.requests.fields.routing import RoutingFields
from completions.requests.fields.window import DeadlineFields
from completions.requests.generation import GenerationRequest, ResponseSettings
from completions.requests.model import ModelRequestObject
from completions.requests.response import ResponseFields, ResponsesRequestObject, read_messages

ORDER: Final = (
    "Sum up this conversation, so that you can go on with it when only your summary is left. Keep "
    "the names, numbers, decisions, results of tools and open tasks that matter. Write the summary "
    "alone."
)
SHARE: Final = 4
"""A summary has at most the tokens of its conversation divided by this, within the bounds below."""
LEAST, MOST = 256, 4096
_INSTRUCTING: Final = ("system", "developer")
_NO_EFFECT: Final = "Leave it out: the summary is a text, which no tool and no constraint shapes."


class CompactRequestObject(ConversionObject[GenerationRequest]):
    renamed = ResponseFields.renamed
    unsupported = {
        **dict.fromkeys(ResponsesRequestObject.fields, _NO_EFFECT),
        **ResponseFields.unsupported,
    }

    model = TextField(ModelRequestObject.model.help, required=True)
    input = ItemsField(
        "The items to sum up; a string is a user's message. Messages of the system and the "
        "developer stay as they are.",
        child=ItemField(),
    )
    instructions = TextField("A system message for the summary alone.")
    previous_response_id = TextField("The stored response whose items come before `input`.")
    priority = RoutingFields.priority
    cache_salt = RoutingFields.cache_salt
    service_tier = DeadlineFields.service_tier
    prompt_cache_key = UnusedField(IgnoredFields.prompt_cache_key)
    prompt_cache_retention = UnusedField(IgnoredFields.prompt_cache_retention)

    def make(self, values: Self, context: Context) -> GenerationRequest:
        messages = read_messages(values, context)
        kept = [
            item
            for item in (*context.earlier.items, *(values.input or ()))
            if item.get("role") in _INSTRUCTING
        ]
        chat = self.fill_chat(
            values,
            context,
            messages=_add_order(messages),
            reasoning_effort="none",
            temperature=0.0,
        )
        request = make_request(chat, context)
        most = min(MOST, max(LEAST, request.job.prompt_tokens // SHARE))
        sampling = request.job.sampling
        request = request.change_job(
            sampling=structs.replace(sampling, max_tokens=min(sampling.max_tokens, most))
        )
        shown = {
            "store": False,
            "kept": [{name: each[name] for name in each if name != "id"} for each in kept],
            "owner": context.principal.organization_id,
        }
        response = ResponseSettings(
            shown=shown, items=(), store=False, previous_id="", conversation_id=None, last_item=0
        )
        ignored = [name for name in request.ignored if name != "reasoning_effort"]
        return replace(request, response=response, ignored=(*ignored, *self.list_unused(context)))


def _add_order(messages: list[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the messages with the order to sum them up: at the end of a user's last message, since
    many templates refuse two in a row."""
    last = messages[-1]
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": ORDER}]
    return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{ORDER}"}]
