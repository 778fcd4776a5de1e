"""What responses contain beside the text, and how they are delivered."""

from dataclasses import dataclass
from typing import Any

from rest_framework import serializers

from completions.accounts.keys import Principal
from completions.catalog.model_files import ModelFiles
from completions.errors import APIError, FieldError
from completions.models import Scope
from completions.requests.fields.base import BooleanField, IntegerField, StrictField
from completions.requests.fields.objects import StrictSerializer, Values, settings_from


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnSettings:
    """The fields of ReturnFields."""

    stream: bool
    stream_options: StreamOptions
    background: bool
    return_token_ids: bool
    return_meta_info: bool
    return_hidden_states: bool
    return_routed_experts: bool
    routed_experts_start_len: int
    return_cached_tokens_details: bool


class StreamOptionsSerializer(StrictSerializer):
    include_usage = BooleanField(
        default=False, help_text="Send one last chunk with the whole request's usage."
    )
    continuous_usage_stats = BooleanField(
        default=False, help_text="Send the choice's usage so far with every chunk."
    )
    include_obfuscation = BooleanField(
        default=False,
        help_text="Add `obfuscation` to every chunk with a choice: random characters that hide how "
        "long its text is.",
    )

    def check(self, values: Values) -> StreamOptions:
        return StreamOptions(**values)


class HiddenStatesField(StrictField, serializers.ChoiceField):
    """`true` and `"last"` mean the same. Read as a boolean."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, {"const": "last"}]}

    def to_internal_value(self, data: Any) -> bool:
        if type(data) is bool:
            return data
        if data != "last":
            code = "invalid_value" if type(data) is str else "invalid_type"
            raise FieldError(code, 'must be true, false or "last".')
        return True


class ReturnFields(StrictSerializer):
    stream = BooleanField(default=False, help_text="Answer with server-sent events.")
    stream_options = StreamOptionsSerializer(required=False, help_text="Only with stream.")
    background = BooleanField(
        default=False, help_text="Answer 202 at once; poll the address in `Location`."
    )
    return_token_ids = BooleanField(
        default=False, help_text="Add token_ids and prompt_token_ids to each choice."
    )
    return_meta_info = BooleanField(
        default=False, help_text="Add SGLang's `meta_info` to each choice that has ended."
    )
    return_hidden_states = HiddenStatesField(
        choices=[True, False, "last"], default=False,
        help_text='true or "last": `hidden_states` of each choice is the final layer\'s vector '
        "from which its last token was chosen.",
    )  # fmt: skip
    return_routed_experts = BooleanField(
        default=False,
        help_text="Mixture-of-experts models: `meta_info.routed_experts` of each choice, and "
        "`sglext.routed_experts` of the first, in base64 the little-endian int32 experts "
        "[prompt and output tokens but the last, layers, experts per token].",
    )
    routed_experts_start_len = IntegerField(
        default=0, min_value=0,
        help_text="Leave out the experts of this many tokens; at most the prompt's length.",
    )  # fmt: skip
    return_cached_tokens_details = BooleanField(
        default=False,
        help_text="Add `sglext.cached_tokens_details`: the cached tokens of the first prompt.",
    )


def return_settings(
    values: Values, principal: Principal, model: ModelFiles, shortest: int
) -> ReturnSettings:
    """The settings of validated fields. `shortest` is the length of the shortest prompt.

    Raises FieldError, and APIError for hidden states that the key may not read.
    """
    options = values["stream_options"]
    returns = settings_from(ReturnSettings, values, stream_options=options or StreamOptions())
    if options is not None and not returns.stream:
        message = "needs stream: true; add it or leave this out."
        raise FieldError("invalid_value", message, "stream_options")
    _check_routed_experts(returns, model, shortest)
    if returns.return_hidden_states and Scope.HIDDEN_STATES not in principal.scopes:
        message = (
            "return_hidden_states: this API key lacks the scope 'hidden_states'. Leave it out, or "
            "ask your administrator for it."
        )
        raise APIError("permission_denied", message, "return_hidden_states")
    return returns


def _check_routed_experts(returns: ReturnSettings, model: ModelFiles, shortest: int) -> None:
    start = returns.routed_experts_start_len
    if start and not returns.return_routed_experts:
        message = "needs return_routed_experts; add it or leave this out."
        raise FieldError("invalid_value", message, "routed_experts_start_len")
    if returns.return_routed_experts and not model.routes_experts:
        message = "this model is not a mixture of experts; leave this out."
        raise FieldError("unsupported_parameter", message, "return_routed_experts")
    if start > shortest:
        message = f"is {start}; it must be at most the prompt's length, {shortest}."
        raise FieldError("integer_above_max_value", message, "routed_experts_start_len")
