"""How tokens are chosen and when a choice ends: the fields, and the object that workers get."""

import secrets
from collections.abc import Mapping
from typing import Any

from completions.errors import FieldError
from completions.requests.fields import (
    BooleanField,
    IntegerField,
    NumberField,
    StrictSerializer,
    TopKField,
)
from completions.requests.text_fields import StopField, StopRegexField
from completions.requests.token_fields import LogitBiasField, TokenIdsField


class SamplingFields(StrictSerializer):
    """`max_tokens` is declared by each route, whose default it is."""

    min_tokens = IntegerField(
        default=0, min_value=0,
        help_text="Nothing but the end of a grammar ends a choice before this many tokens.",
    )  # fmt: skip
    temperature = NumberField(
        default=1.0, min_value=0, max_value=2, help_text="0 always takes the likeliest token."
    )
    top_p = NumberField(
        default=1.0, min_value=0, above=True, max_value=1,
        help_text="Keep the likeliest tokens that together reach this probability.",
    )  # fmt: skip
    top_k = TopKField(
        default=-1, min_value=-1, help_text="Keep this many of the likeliest tokens; -1 or 0: all."
    )
    min_p = NumberField(
        default=0.0, min_value=0, max_value=1,
        help_text="Drop tokens less likely than this share of the likeliest one's probability.",
    )  # fmt: skip
    seed = IntegerField(
        required=False, min_value=-(2**63), max_value=2**63 - 1,
        help_text="The same seed gives the same tokens, whatever else runs; drawn when absent.",
    )  # fmt: skip
    n = IntegerField(
        default=1, min_value=1, max_value=128,
        help_text="Choices per prompt; prompts times n at most 1024.",
    )  # fmt: skip
    stop = StopField(
        required=False,
        help_text="Up to 16 strings of 1-256 characters that end a choice; not part of its text.",
    )
    stop_regex = StopRegexField(
        required=False,
        help_text="Up to 32 regular expressions of 1-256 bytes, matched in linear time, that end "
        "a choice; `matched_stop` is the pattern, `meta_info.matched_stop_text` what it matched.",
    )
    stop_token_ids = TokenIdsField(
        required=False, max_length=128, help_text="Up to 128 token ids that end a choice."
    )
    ignore_eos = BooleanField(
        default=False,
        help_text="Go on after the model's end-of-sequence tokens; needs max_tokens.",
    )
    no_stop_trim = BooleanField(
        default=False, help_text="Leave what ended the choice at the end of its text."
    )
    logit_bias = LogitBiasField(
        required=False, help_text="Up to 1024 token ids with numbers from -100 to 100 to add."
    )
    frequency_penalty = NumberField(
        default=0.0, min_value=-2, max_value=2,
        help_text="Subtracted once per occurrence of a token in the output.",
    )  # fmt: skip
    presence_penalty = NumberField(
        default=0.0, min_value=-2, max_value=2,
        help_text="Subtracted from every token that occurs in the output.",
    )  # fmt: skip
    repetition_penalty = NumberField(
        default=1.0, min_value=0, above=True, max_value=2,
        help_text="Divides positive and multiplies negative logits of tokens in the output "
        "(and in the prompt where models.toml says so).",
    )  # fmt: skip
    skip_special_tokens = BooleanField(
        default=True, help_text="Leave special tokens out of the text."
    )
    spaces_between_special_tokens = BooleanField(
        default=True,
        help_text="Keep the space that some tokenizers' decoders put between special tokens.",
    )


_AS_GIVEN = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "n", "ignore_eos", "no_stop_trim",
    "skip_special_tokens", "spaces_between_special_tokens",
)  # fmt: skip
_ARRAYS = ("stop", "stop_regex", "stop_token_ids")


def sampling_of(validated: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's sampling parameters of a validated body, as they cross the queue."""
    sampling = {name: validated[name] for name in _AS_GIVEN}
    sampling["best_of"] = validated.get("best_of")  # completions alone have it
    seed = validated["seed"]
    sampling["seed"] = secrets.randbits(63) if seed is None else seed
    for name in _ARRAYS:
        sampling[name] = validated[name] or []
    biases = validated["logit_bias"] or {}
    sampling["logit_bias"] = {str(token): bias for token, bias in biases.items()}
    return sampling


def check_sampling(validated: Mapping[str, Any]) -> None:
    """The rules among these fields. Raises FieldError."""
    if validated["min_tokens"] > validated["max_tokens"]:
        message = f"must not exceed max_tokens ({validated['max_tokens']})."
        raise FieldError("invalid_value", message, "min_tokens")
