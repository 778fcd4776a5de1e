"""How tokens are chosen and when a choice ends: the fields, and the settings for a worker."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import orjson

from completions.catalog.entries import ModelEntry
from completions.contract.sampling import DRY_SEQUENCE_BREAKERS, FLOATS, INTEGERS
from completions.errors import FieldError
from completions.requests.fields.base import (
    BooleanField,
    IntegerField,
    ListField,
    NumberField,
    StorableObjectField,
    TextField,
    check_count,
)
from completions.requests.fields.objects import StrictSerializer, Values, settings_from
from completions.requests.fields.stops import StopField, StopRegexField
from completions.requests.fields.tokens import LogitBiasField, TokenIdsField

MAX_PARAMS_BYTES = 16 * 1024
MAX_BREAKERS = 64


class TopKField(IntegerField):
    """Read as -1 where the filter is off: for -1, 0, and more than any vocabulary has."""

    def to_internal_value(self, data: Any) -> int:
        top_k = super().to_internal_value(data)
        return top_k if 0 < top_k < 2**31 else -1


class BreakersField(ListField):
    """Texts that are not empty."""

    def to_internal_value(self, data: Any) -> list[Any]:
        texts = super().to_internal_value(data)
        check_count(texts, MAX_BREAKERS, "strings")
        if "" in texts:
            path = f"[{texts.index('')}]"
            raise FieldError("invalid_value", "must have at least 1 character.", path)
        return texts


class ParamsField(StorableObjectField):
    """By name scalars, arrays of scalars and objects of scalars, as in SGLang."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        params = super().to_internal_value(data)
        if (size := len(orjson.dumps(params))) > MAX_PARAMS_BYTES:
            message = f"has {size} bytes as JSON; it may have at most {MAX_PARAMS_BYTES}."
            raise FieldError("invalid_value", message)
        for name, value in params.items():
            if name.startswith("__"):
                raise FieldError("invalid_value", "names must not begin with __.", name)
            inner = value if type(value) is list else [value]
            inner = list(value.values()) if type(value) is dict else inner
            if any(isinstance(each, list | dict) for each in inner):
                message = "must be a scalar, or an array or object of scalars."
                raise FieldError("invalid_value", message, name)
        return params


class SamplingFields(StrictSerializer):
    """Each route declares `max_tokens` itself, with its own default. The worker that runs a custom
    logit processor checks the processor's parameters."""

    min_tokens = IntegerField(
        range=INTEGERS["min_tokens"],
        help_text="Before this many tokens, only the end of a grammar ends a choice.",
    )
    temperature = NumberField(
        range=FLOATS["temperature"], help_text="0 always takes the likeliest token."
    )
    top_p = NumberField(
        range=FLOATS["top_p"],
        help_text="Keep the likeliest tokens that together reach this probability.",
    )
    top_k = TopKField(
        range=INTEGERS["top_k"], help_text="Keep this many of the likeliest tokens; -1 or 0: all."
    )
    min_p = NumberField(
        range=FLOATS["min_p"],
        help_text="Drop tokens less likely than this share of the likeliest one's probability.",
    )
    seed = IntegerField(
        required=False, min_value=-(2**63), max_value=2**63 - 1,
        help_text="The same seed gives the same tokens, whatever else runs; drawn when absent.",
    )  # fmt: skip
    n = IntegerField(
        range=INTEGERS["n"], help_text="Choices per prompt; prompts times n at most 1024."
    )
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
        default=False, help_text="Leave the stop that ended the choice at the end of its text."
    )
    logit_bias = LogitBiasField(
        required=False, help_text="Up to 1024 token ids with numbers from -100 to 100 to add."
    )
    frequency_penalty = NumberField(
        range=FLOATS["frequency_penalty"],
        help_text="Subtracted once per occurrence of a token in the output.",
    )
    presence_penalty = NumberField(
        range=FLOATS["presence_penalty"],
        help_text="Subtracted from every token that occurs in the output.",
    )
    repetition_penalty = NumberField(
        range=FLOATS["repetition_penalty"],
        help_text="Divides positive and multiplies negative logits of tokens in the output "
        "(and in the prompt where models.toml says so).",
    )
    skip_special_tokens = BooleanField(
        default=True, help_text="Leave special tokens out of the text."
    )
    spaces_between_special_tokens = BooleanField(
        default=True,
        help_text="Keep the space that some tokenizers' decoders put between special tokens.",
    )
    dry_multiplier = NumberField(
        range=FLOATS["dry_multiplier"],
        help_text="Penalise tokens that continue a repetition (DRY), prompt included: "
        "subtract dry_multiplier * dry_base ^ (length of it - dry_allowed_length); 0: off.",
    )
    dry_base = NumberField(
        range=FLOATS["dry_base"], help_text="How fast that grows with the length."
    )
    dry_allowed_length = IntegerField(
        range=INTEGERS["dry_allowed_length"],
        help_text="Repetitions shorter than this are not penalised.",
    )
    dry_sequence_breakers = BreakersField(
        child=TextField(max_length=256), required=False,
        help_text="Up to 64 texts of 1-256 characters that a repetition does not cross; default: "
        "a line break, a colon, a double quote and an asterisk.",
    )  # fmt: skip
    custom_logit_processor = TextField(
        required=False,
        help_text="Name of a processor: disallowed_tokens (custom_params: token_ids), "
        "thinking_budget (thinking_budget, and start_token and end_token where they are not "
        "<think> and </think>), or one that the operator registered in models.toml.",
    )
    custom_params = ParamsField(
        required=False, help_text="Parameters of custom_logit_processor, at most 16 KiB."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """The engine's sampling parameters, named as in `workers.engine.request.SamplingParams`."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_sequence_breakers: Sequence[str]
    custom_logit_processor: str | None
    custom_params: Mapping[str, Any]
    n: int
    best_of: int | None
    seed: int
    stop: Sequence[str]
    stop_regex: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    no_stop_trim: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool

    def payload(self) -> dict[str, Any]:
        """JSON for a worker."""
        payload = {name: getattr(self, name) for name in _NAMES}
        payload["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        return payload


_NAMES: Final = tuple(each.name for each in fields(SamplingSettings))


def sampling_settings(values: Values, entry: ModelEntry, max_tokens: int) -> SamplingSettings:
    """The settings of validated fields. Raises FieldError."""
    if values["min_tokens"] > max_tokens:
        message = f"is {values['min_tokens']}; it must not exceed max_tokens ({max_tokens})."
        raise FieldError("invalid_value", message, "min_tokens")
    _check_processor(values, entry)
    seed, breakers = values["seed"], values["dry_sequence_breakers"]
    return settings_from(
        SamplingSettings,
        values,
        max_tokens=max_tokens,
        best_of=values.get("best_of"),  # a field of completions only
        seed=secrets.randbits(63) if seed is None else seed,
        logit_bias=values["logit_bias"] or {},
        dry_sequence_breakers=DRY_SEQUENCE_BREAKERS if breakers is None else breakers,
        custom_params=values["custom_params"] or {},
        **{name: values[name] or () for name in ("stop", "stop_regex", "stop_token_ids")},
    )


def _check_processor(values: Values, entry: ModelEntry) -> None:
    name = values["custom_logit_processor"]
    if name is None:
        if values["custom_params"] is not None:
            message = "needs custom_logit_processor; add it or leave this out."
            raise FieldError("invalid_value", message, "custom_params")
        return
    known = ", ".join(entry.logit_processors)
    if "callable" in name:
        message = f"must be a processor's name; code is never accepted. This model knows: {known}."
        raise FieldError("unsupported_value", message, "custom_logit_processor")
    if name not in entry.logit_processors:
        message = f"this model has no processor {name[:64]!r}; it knows: {known}."
        raise FieldError("invalid_value", message, "custom_logit_processor")
