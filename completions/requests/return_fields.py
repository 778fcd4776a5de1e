"""What is told about a request's choices, and how it is delivered."""

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.requests.fields import BooleanField, IntegerField, StrictField, StrictSerializer


class StreamOptionsSerializer(StrictSerializer):
    include_usage = BooleanField(
        default=False, help_text="Send one last chunk with the whole request's usage."
    )
    continuous_usage_stats = BooleanField(
        default=False, help_text="Send the choice's usage so far with every chunk."
    )
    include_obfuscation = BooleanField(
        default=False,
        help_text="Add `obfuscation` to every chunk with a choice: characters without meaning that "
        "hide how long its text is.",
    )


class HiddenStatesField(StrictField, serializers.ChoiceField):
    """`true` and `"last"` ask for the same."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, {"const": "last"}]}

    def to_internal_value(self, data: Any) -> bool:
        if type(data) is bool:
            return data
        if type(data) is not str:
            raise FieldError("invalid_type", 'must be true, false or "last".')
        if data != "last":
            raise FieldError("invalid_value", 'must be true, false or "last".')
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


def check_returns(
    validated: Mapping[str, Any], model: ModelFiles, prompts: Sequence[Sequence[int]]
) -> None:
    """The rules among these fields. Raises FieldError."""
    if validated["stream_options"] is not None and not validated["stream"]:
        raise FieldError("invalid_value", "goes with stream: true only.", "stream_options")
    start = validated["routed_experts_start_len"]
    if not validated["return_routed_experts"]:
        if start:
            message = "goes with return_routed_experts only."
            raise FieldError("invalid_value", message, "routed_experts_start_len")
        return
    if not model.routes_experts:
        message = "this model has no experts to route tokens to."
        raise FieldError("unsupported_parameter", message, "return_routed_experts")
    shortest = min(map(len, prompts))
    if start > shortest:
        message = f"must be at most the prompt's length, {shortest}."
        raise FieldError("integer_above_max_value", message, "routed_experts_start_len")
