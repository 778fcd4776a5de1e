"""What responses contain beside the text, and how they are delivered."""

from dataclasses import dataclass
from typing import Self

from completions.accounts.keys import Principal
from completions.catalog.model_files import ModelFiles
from completions.exceptions import APIError, FieldError
from completions.models import Scope
from completions.requests.context import Context
from completions.requests.fields.base import BooleanField, Field, IntegerField, format_number
from completions.requests.fields.objects import StrictObject


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnSettings:
    """The fields of ReturnFields that the worker does not need."""

    stream: bool
    stream_options: StreamOptions
    background: bool
    return_token_ids: bool
    return_meta_info: bool
    return_cached_tokens_details: bool


class StreamOptionsObject(StrictObject[StreamOptions | None]):
    include_usage = BooleanField(
        "Send one last chunk with the whole request's usage.", default=False
    )
    continuous_usage_stats = BooleanField(
        "Send the choice's usage so far with every chunk.", default=False
    )
    include_obfuscation = BooleanField(
        "Add `obfuscation` to every chunk with a choice: random characters that hide how "
        "long its text is.",
        default=False,
    )

    def check(self, values: Self) -> StreamOptions:
        return StreamOptions(
            include_usage=values.include_usage,
            continuous_usage_stats=values.continuous_usage_stats,
            include_obfuscation=values.include_obfuscation,
        )


class HiddenStatesField(Field[bool]):
    """`true` and `"last"` mean the same. Read as a boolean."""

    accepts = {"anyOf": [{"type": "boolean"}, {"const": "last"}]}

    def read(self, data: object, context: Context | None = None) -> bool:
        if type(data) is bool:
            return data
        if data != "last":
            code = "invalid_value" if type(data) is str else "invalid_type"
            raise FieldError('must be true, false or "last".', code=code)
        return True


class ReturnFields(StrictObject[object]):
    stream = BooleanField("Answer with server-sent events.", default=False)
    stream_options = StreamOptionsObject("Only with stream.")
    background = BooleanField("Answer 202 at once; poll the address in `Location`.", default=False)
    return_token_ids = BooleanField(
        "Add token_ids, prompt_token_ids and token_mask to each choice. The mask has a number for "
        "each of token_ids: 1 sampled, 2 forced by the constraint, 0 given by the client.",
        default=False,
    )
    return_meta_info = BooleanField(
        "Add SGLang's `meta_info` to each choice that has ended. Under a constraint, "
        "`meta_info.constraint` says how far it shaped the choice, and each token of "
        "`logprobs` has `forced`: true if the constraint allowed no other token. "
        "`weight_version` is the digest of the weights, `engine` the build that computed it.",
        default=False,
    )
    return_hidden_states = HiddenStatesField(
        'true or "last": `hidden_states` of each choice is the final layer\'s vector '
        "from which its last token was chosen.",
        default=False,
    )
    return_routed_experts = BooleanField(
        "Mixture-of-experts models: add `meta_info.routed_experts` to each choice, and "
        "`sglext.routed_experts` for the first: ids of experts as little-endian int32 in base64, "
        "of shape [prompt and output tokens but the last, layers, experts per token].",
        default=False,
    )
    routed_experts_start_len = IntegerField(
        "Leave out the experts of this many tokens, at most the prompt's length; no effect "
        "without return_routed_experts.",
        default=0,
        min_value=0,
    )
    return_cached_tokens_details = BooleanField(
        "Add `sglext.cached_tokens_details`: the cached tokens of the first prompt.", default=False
    )


def parse_returns(
    values: ReturnFields, principal: Principal, model: ModelFiles, shortest: int
) -> ReturnSettings:
    """Return the settings of validated fields; the shortest prompt has `shortest` tokens. Raises
    FieldError, and APIError for hidden states that the key may not read."""
    options = values.stream_options
    returns = ReturnSettings(
        stream=values.stream,
        stream_options=options or StreamOptions(),
        background=values.background,
        return_token_ids=values.return_token_ids,
        return_meta_info=values.return_meta_info,
        return_cached_tokens_details=values.return_cached_tokens_details,
    )
    if options is not None and not returns.stream:
        raise FieldError("needs stream: true; add it or leave this out.", "stream_options")
    _check_routed_experts(values, model, shortest)
    if values.return_hidden_states and Scope.HIDDEN_STATES not in principal.scopes:
        message = (
            "return_hidden_states: this API key lacks the scope 'hidden_states'. Leave it out, or "
            "ask your administrator for it."
        )
        raise APIError("permission_denied", message, "return_hidden_states")
    return returns


def list_without_effect(values: ReturnFields) -> list[str]:
    """Return names of given fields that have an effect only with another field, which is not
    given."""
    alone = values.routed_experts_start_len and not values.return_routed_experts
    return ["routed_experts_start_len"] if alone else []


def _check_routed_experts(values: ReturnFields, model: ModelFiles, shortest: int) -> None:
    start = values.routed_experts_start_len
    if not values.return_routed_experts:
        return
    if not model.routes_experts:
        message = "this model is not a mixture of experts; leave this out."
        raise FieldError(message, "return_routed_experts", code="unsupported_parameter")
    if start > shortest:
        message = f"is {format_number(start)}; it must be at most the prompt's length, {shortest}."
        raise FieldError(message, "routed_experts_start_len", code="integer_above_max_value")
