"""How tokens are chosen and when a choice ends: the fields, and the parameters for the engine."""

import secrets
from collections.abc import Sequence
from typing import Any

import orjson

from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.contract.sampling import FLOATS, INTEGERS, SamplingParams
from completions.contract.stop_regex import automaton
from completions.contract.stop_regex.syntax import RegexError
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    BooleanField,
    Field,
    IntegerField,
    NumberField,
    StorableObjectField,
    TextField,
    expect,
    format_number,
    name_type,
    read_each,
)
from completions.requests.fields.lists import ListField, check_count
from completions.requests.fields.objects import StrictObject
from completions.requests.fields.tokens import LogitBiasField, TokenIdsField, encode_text

MAX_PARAMS_BYTES = 16 * 1024
MAX_BREAKERS = 64

_ARRAYS = frozenset(
    {"stop", "stop_regex", "stop_token_ids", "dry_sequence_breakers", "allowed_token_ids"}
)
"""Fields that are arrays in a body and tuples in SamplingParams."""
_AS_GIVEN = (
    frozenset(SamplingParams.__struct_fields__)
    - _ARRAYS
    - {
        "max_tokens",
        "best_of",  # each route declares these
        "min_tokens",  # which `truncate_sequence` may lower
        "stop_spans",  # not from a field: a chat's reasoning and calls
        "no_stop_trim",  # which has two names
        "bad_words",  # texts in a body, token ids here
    }
)


class TopKField(IntegerField[int]):
    """Read as -1, which means that the filter is off, for -1, 0, and more than any vocabulary
    has."""

    def read(self, data: object, context: Context | None = None) -> int:
        top_k = super().read(data, context)
        return top_k if 0 < top_k < 2**31 else -1


class BreakersField(ListField[list[str] | None]):
    """Texts that are not empty."""

    def read(self, data: object, context: Context | None = None) -> list[object]:
        texts = super().read(data, context)
        check_count(texts, MAX_BREAKERS, "strings")
        if "" in texts:
            path = f"[{texts.index('')}]"
            raise FieldError("must have at least 1 character.", path)
        return texts


class ParamsField(StorableObjectField[dict[str, Any] | None]):
    """Scalars, arrays of scalars and objects of scalars by name, as in SGLang."""

    def read(self, data: object, context: Context | None = None) -> dict[str, object]:
        params = super().read(data, context)
        if (size := len(orjson.dumps(params))) > MAX_PARAMS_BYTES:
            raise FieldError(f"has {size} bytes as JSON; it may have at most {MAX_PARAMS_BYTES}.")
        for name, value in params.items():
            if name.startswith("__"):
                raise FieldError("names must not begin with __.", name)
            inner = value if type(value) is list else [value]
            inner = list(value.values()) if type(value) is dict else inner
            if any(isinstance(each, list | dict) for each in inner):
                raise FieldError("must be a scalar, or an array or object of scalars.", name)
        return params


class StopField(Field[list[str] | None]):
    """Stop strings."""

    max_texts = 16
    max_characters = 256

    def to_schema(self) -> dict[str, object]:
        text = {"type": "string", "minLength": 1, "maxLength": self.max_characters}
        return {"anyOf": [text, {"type": "array", "items": text, "maxItems": self.max_texts}]}

    def read(self, data: object, context: Context | None = None) -> list[str]:
        if type(data) is str:
            return [self.check_text(data)]
        data = expect(data, list, "a string or an array of strings")
        check_count(data, self.max_texts, "strings")
        return read_each(data, self.check_text)

    def check_text(self, value: object) -> str:
        """Return one of the texts. Raises FieldError."""
        if type(value) is not str:
            raise FieldError(f"must be a string, not {name_type(value)}.", code="invalid_type")
        if not 1 <= len(value) <= self.max_characters:
            raise FieldError(f"has {len(value)} characters; it must have 1-{self.max_characters}.")
        return value


class StopRegexField(StopField):
    """Stop regexes. They are compiled here, so that a bad one never reaches a worker."""

    max_texts = automaton.MAX_PATTERNS
    max_characters = automaton.MAX_PATTERN_BYTES

    def check_text(self, value: object) -> str:
        pattern = super().check_text(value)
        if (size := len(pattern.encode())) > self.max_characters:
            message = f"has {size} bytes in UTF-8; it may have at most {self.max_characters}."
            raise FieldError(message)
        try:
            automaton.compile_regex(pattern)
        except RegexError as error:
            raise FieldError(f"{error}.") from error
        return pattern

    def read(self, data: object, context: Context | None = None) -> list[str]:
        patterns = super().read(data, context)
        try:
            automaton.compile_all(patterns)
        except RegexError as error:
            raise FieldError(f"{error}.") from error
        return patterns


class SamplingFields(StrictObject[object]):
    """Each route declares `max_tokens`. The worker checks the parameters of custom processors."""

    min_tokens = IntegerField(
        "End tokens and stop sequences have no effect until this many tokens are generated. A "
        "finished grammar still ends the choice.",
        range=INTEGERS["min_tokens"],
    )
    temperature = NumberField("0 always takes the likeliest token.", range=FLOATS["temperature"])
    top_p = NumberField(
        "Keep the likeliest tokens that together reach this probability.", range=FLOATS["top_p"]
    )
    top_k = TopKField(
        "Keep this many of the likeliest tokens; -1 or 0: all.", range=INTEGERS["top_k"]
    )
    min_p = NumberField(
        "Drop tokens less likely than this share of the likeliest one's probability.",
        range=FLOATS["min_p"],
    )
    seed = IntegerField(
        "Makes sampling repeatable where the forward pass is (docs/use.md, Repeat a result). "
        "Random if omitted.",
        min_value=-(2**63),
        max_value=2**63 - 1,
    )
    n = IntegerField("Choices per prompt; prompts times n at most 1024.", range=INTEGERS["n"])
    stop = StopField(
        "Up to 16 strings of 1-256 characters that end a choice; not part of its text. In chat, "
        "reasoning in reasoning_content and tool calls are searched neither for them nor for "
        "stop_regex."
    )
    stop_regex = StopRegexField(
        "Up to 32 regular expressions of 1-256 bytes, matched in linear time, that end "
        "a choice; ^ is the beginning of its text, and $, only at the end of a pattern, the end of "
        "its text so far; `matched_stop` is the pattern, `meta_info.matched_stop_text` what it "
        "matched."
    )
    stop_token_ids = TokenIdsField("Up to 128 token ids that end a choice.", max_length=128)
    ignore_eos = BooleanField(
        "Go on after the model's end-of-sequence tokens; needs max_tokens.", default=False
    )
    no_stop_trim = BooleanField(
        "Leave the stop that ended the choice at the end of its text.", default=False
    )
    include_stop_str_in_output = BooleanField("vLLM's name for no_stop_trim.", default=False)
    bad_words = ListField(
        "Up to 128 texts of 1-256 characters that the output does not contain, each as the "
        "model's tokens with and without a space before it. A constraint still writes what it "
        "requires.",
        child=TextField(max_length=256),
        max_length=128,
    )
    allowed_token_ids = TokenIdsField(
        "Up to 16384 token ids; no other token is sampled, end tokens included. A constraint still "
        "writes what it requires.",
        max_length=16384,
    )
    logit_bias = LogitBiasField("Up to 1024 token ids with numbers from -100 to 100 to add.")
    frequency_penalty = NumberField(
        "Subtracted once per occurrence of a token in the output.",
        range=FLOATS["frequency_penalty"],
    )
    presence_penalty = NumberField(
        "Subtracted from every token that occurs in the output.", range=FLOATS["presence_penalty"]
    )
    repetition_penalty = NumberField(
        "Divides positive and multiplies negative logits of tokens in the output "
        "(and in the prompt where models.toml says so).",
        range=FLOATS["repetition_penalty"],
    )
    skip_special_tokens = BooleanField("Leave special tokens out of the text.", default=True)
    spaces_between_special_tokens = BooleanField(
        "Keep the space that some tokenizers' decoders put between special tokens.", default=True
    )
    dry_multiplier = NumberField(
        "Penalise tokens that continue a repetition (DRY), prompt included: "
        "subtract dry_multiplier * dry_base ^ (length of it - dry_allowed_length); 0: off.",
        range=FLOATS["dry_multiplier"],
    )
    dry_base = NumberField(
        "How fast the DRY penalty grows with the length.", range=FLOATS["dry_base"]
    )
    dry_allowed_length = IntegerField(
        "Repetitions shorter than this are not penalised.", range=INTEGERS["dry_allowed_length"]
    )
    dry_sequence_breakers = BreakersField(
        "Up to 64 texts of 1-256 characters that a repetition does not cross; default: "
        "a line break, a colon, a double quote and an asterisk.",
        child=TextField(max_length=256),
    )
    custom_logit_processor = TextField(
        "Name of a processor: disallowed_tokens (custom_params: token_ids), "
        "thinking_budget (thinking_budget, and start_token and end_token where they are not "
        "<think> and </think>), or one that the operator registered in models.toml."
    )
    custom_params = ParamsField(
        "Parameters of custom_logit_processor, at most 16 KiB; no effect without it."
    )


def parse_sampling(
    values: SamplingFields, model: ModelFiles, min_tokens: int, max_tokens: int
) -> SamplingParams:
    """Return the parameters that validated fields ask for. Raises FieldError."""
    if min_tokens > max_tokens:
        least, most = format_number(min_tokens), format_number(max_tokens)
        message = f"is {least}; it must not exceed max_tokens ({most})."
        raise FieldError(message, "min_tokens")
    _check_processor(values, model.entry)
    _check_allowed(values, model, min_tokens)
    read = values.list_values()
    given = {name: read[name] for name in _AS_GIVEN}
    given |= {name: tuple(read[name]) for name in _ARRAYS if read[name] is not None}
    if values.seed is None:
        given["seed"] = secrets.randbits(63)
    if list_without_effect(values):
        del given["custom_params"]
    present = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        best_of=read.get("best_of"),  # a field of completions only
        no_stop_trim=values.no_stop_trim or values.include_stop_str_in_output,
        bad_words=_encode_bad_words(values.bad_words or (), model),
        **present,
    )


def list_without_effect(values: SamplingFields) -> list[str]:
    """Return names of given fields that have an effect only with another field, which is not
    given."""
    alone = values.custom_params is not None and values.custom_logit_processor is None
    return ["custom_params"] if alone else []


def _encode_bad_words(words: Sequence[str], model: ModelFiles) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, and those with a space before it if they are as many and
    begin otherwise. Raises FieldError. The rule is vLLM's: vllm/sampling_params.py
    (update_from_tokenizer)."""
    encoded: list[tuple[int, ...]] = []
    for index, word in enumerate(words):
        path = f"bad_words[{index}]"
        if not word.strip():
            raise FieldError("must have a character other than white space.", path)
        text = word.lstrip()
        plain, spaced = (
            tuple(encode_text(model, each, path, special=False)) for each in (text, f" {text}")
        )
        encoded.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            encoded.append(spaced)
    return tuple(encoded)


def _check_allowed(values: SamplingFields, model: ModelFiles, min_tokens: int) -> None:
    """Raise FieldError where no token could be sampled."""
    allowed = values.allowed_token_ids
    if allowed is None:
        return
    if not allowed:
        raise FieldError("must hold at least one id.", "allowed_token_ids", code="empty_array")
    ends = {*model.eos_token_ids, *(values.stop_token_ids or ())}
    if min_tokens and ends.issuperset(allowed):
        message = "holds only ids that end a choice, which min_tokens forbids. Add others."
        raise FieldError(message, "allowed_token_ids")


def _check_processor(values: SamplingFields, entry: ModelEntry) -> None:
    name = values.custom_logit_processor
    if name is None:
        return
    names = ", ".join(entry.logit_processors)
    if "callable" in name:
        message = f"must be a processor's name; code is never accepted. This model knows: {names}."
        raise FieldError(message, "custom_logit_processor", code="unsupported_value")
    if name not in entry.logit_processors:
        message = f"this model has no processor {name[:64]!r}; it knows: {names}."
        raise FieldError(message, "custom_logit_processor")
