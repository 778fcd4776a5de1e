"""What changes the likelihood of tokens beyond the usual: DRY, and processors that operators
registered."""

from collections.abc import Mapping
from typing import Any

import orjson

from completions.catalog.entries import ModelEntry
from completions.errors import FieldError
from completions.requests.fields import (
    IntegerField,
    KeptObjectField,
    ListField,
    NumberField,
    StrictSerializer,
    TextField,
)

MAX_PARAMS_BYTES = 16 * 1024
MAX_BREAKERS = 64
BREAKERS = ("\n", ":", '"', "*")


class BreakersField(ListField):
    """Texts, none of them empty."""

    def to_internal_value(self, data: Any) -> list[Any]:
        texts = super().to_internal_value(data)
        if len(texts) > MAX_BREAKERS:
            message = f"may hold at most {MAX_BREAKERS} strings."
            raise FieldError("array_above_max_length", message)
        if "" in texts:
            path = f"[{texts.index('')}]"
            raise FieldError("invalid_value", "must have 1 character at least.", path)
        return texts


class ParamsField(KeptObjectField):
    """Scalars, arrays of scalars and objects of scalars, by name, as in SGLang."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        params = super().to_internal_value(data)
        if len(orjson.dumps(params)) > MAX_PARAMS_BYTES:
            raise FieldError("invalid_value", f"may have at most {MAX_PARAMS_BYTES} bytes.")
        for name, value in params.items():
            if name.startswith("__"):
                raise FieldError("invalid_value", "names must not begin with __.", name)
            inner = value if type(value) is list else [value]
            inner = list(value.values()) if type(value) is dict else inner
            if any(isinstance(each, list | dict) for each in inner):
                message = "must be a scalar, or an array or object of scalars."
                raise FieldError("invalid_value", message, name)
        return params


class ProcessingFields(StrictSerializer):
    """A processor's own parameters are checked by the worker that runs it."""

    dry_multiplier = NumberField(
        default=0.0, min_value=0,
        help_text="Penalise tokens that would go on with a repetition (DRY), prompt included: "
        "subtract dry_multiplier * dry_base ^ (length of it - dry_allowed_length); 0: off.",
    )  # fmt: skip
    dry_base = NumberField(
        default=1.75, min_value=0, above=True, help_text="How fast that grows with the length."
    )
    dry_allowed_length = IntegerField(
        default=2, min_value=0, max_value=2**31 - 1,
        help_text="Repetitions shorter than this are not penalised.",
    )  # fmt: skip
    dry_sequence_breakers = BreakersField(
        child=TextField(max_length=256), required=False,
        help_text="Up to 64 texts of 1-256 characters across which no repetition counts; default: "
        "a line break, a colon, a double quote and an asterisk.",
    )  # fmt: skip
    custom_logit_processor = TextField(
        required=False,
        help_text="Name of a processor: disallowed_tokens (custom_params: token_ids), "
        "thinking_budget (thinking_budget, and start_token and end_token where they are not "
        "<think> and </think>), or one that the operator registered in models.toml.",
    )
    custom_params = ParamsField(
        required=False, help_text="Parameters of custom_logit_processor, 16 KiB at most."
    )


def check_processing(validated: Mapping[str, Any], entry: ModelEntry) -> None:
    """The rules among these fields. Raises FieldError."""
    name = validated["custom_logit_processor"]
    if name is None:
        if validated["custom_params"] is not None:
            message = "goes with custom_logit_processor only."
            raise FieldError("invalid_value", message, "custom_params")
        return
    known = ", ".join(entry.logit_processors)
    if "callable" in name:
        message = f"names a processor, and never holds code. This model knows: {known}."
        raise FieldError("unsupported_value", message, "custom_logit_processor")
    if name not in entry.logit_processors:
        message = f"is not a processor of this model; known: {known}."
        raise FieldError("invalid_value", message, "custom_logit_processor")


def processing_of(validated: Mapping[str, Any]) -> dict[str, Any]:
    """These fields as part of the engine's sampling parameters."""
    names = ("dry_multiplier", "dry_base", "dry_allowed_length", "custom_logit_processor")
    breakers = validated["dry_sequence_breakers"]
    return {
        **{name: validated[name] for name in names},
        "dry_sequence_breakers": list(BREAKERS) if breakers is None else breakers,
        "custom_params": validated["custom_params"] or {},
    }
