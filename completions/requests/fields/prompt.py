"""The field `prompt`: token ids, or texts for models that take them, one or a batch."""

from typing import Any, NoReturn

from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.requests.fields.base import StrictField, kind
from completions.requests.fields.tokens import (
    TOKEN_ID,
    TokenIdsField,
    check_length,
    check_token_id,
    token_ids,
)

MAX_PROMPTS = 256
"""Prompts in one request."""
_IDS_ONLY = {int}  # the set of exact types: `type(True)` is bool


class PromptField(StrictField, serializers.ListField):
    """Read as a batch: a list of lists of token ids."""

    def to_schema(self) -> dict[str, Any]:
        ids = {"type": "array", "items": TOKEN_ID, "minItems": 1}
        texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        several = {"minItems": 1, "maxItems": MAX_PROMPTS}
        batches = [{"type": "array", "items": ids, **several}, {**texts, **several}]
        return {"anyOf": [ids, *batches, {"type": "string"}]}

    def to_internal_value(self, data: Any) -> Any:
        return data

    def for_model(self, value: Any, model: ModelFiles) -> list[list[int]]:
        if model.text_prompts and _is_text(value):
            return _tokenized(value, model)
        return parse_prompt(value, model.vocab_size)


class RawPromptField(StrictField, serializers.JSONField):
    """A chat's prompt without a template: a text or token ids. Read as token ids."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, TokenIdsField().to_schema()]}

    def to_internal_value(self, data: Any) -> str | list[Any]:
        if type(data) not in (str, list):
            message = f"must be a string or an array of token ids, not {kind(data)}."
            raise FieldError("invalid_type", message)
        return data  # type: ignore[no-any-return]

    def for_model(self, value: str | list[Any], model: ModelFiles) -> list[int]:
        if isinstance(value, str):
            return token_ids(model, value)
        return TokenIdsField().for_model(value, model)


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is list and set(map(type, value)) == {str})


def _tokenized(value: str | list[str], model: ModelFiles) -> list[list[int]]:
    """Texts as token ids, with BOS where the tokenizer adds it."""
    texts = [value] if isinstance(value, str) else value
    paths = [""] if isinstance(value, str) else [f"[{index}]" for index in range(len(texts))]
    _check_prompt_count(len(texts))
    for text, path in zip(texts, paths, strict=True):
        check_length(model, text, path)
    prompts = [list(encoding.ids) for encoding in model.tokenizer.encode_batch(texts)]
    for prompt, path in zip(prompts, paths, strict=True):
        if not prompt:
            raise FieldError("empty_array", "must hold at least one token.", path)
    return prompts


def parse_prompt(value: Any, vocab_size: int) -> list[list[int]]:
    """One prompt of token ids or a batch of them, always as a batch. Raises FieldError.

    Every id is in [0, vocab_size). Errors name the first offending element: `[1][3]`.
    """
    if type(value) is not list:
        _refuse_non_list(value)
    if not value:
        raise FieldError("empty_array", "must hold at least one token id.")
    if type(value[0]) is not list:
        if not _all_ids(value, vocab_size):
            _refuse_single(value, vocab_size)
        return [value]
    _check_prompt_count(len(value))
    for index, prompt in enumerate(value):
        if type(prompt) is not list or not prompt or not _all_ids(prompt, vocab_size):
            _refuse_member(prompt, vocab_size, f"[{index}]")
    return value


def _check_prompt_count(count: int) -> None:
    if count > MAX_PROMPTS:
        message = f"has {count} prompts; one request may have at most {MAX_PROMPTS}."
        raise FieldError("array_above_max_length", message)


def _all_ids(ids: list[Any], vocab_size: int) -> bool:
    return set(map(type, ids)) == _IDS_ONLY and min(ids) >= 0 and max(ids) < vocab_size


# A prompt that `_all_ids` refuses: find the first offending element and say what is wrong.


def _refuse_non_list(value: Any) -> NoReturn:
    if type(value) is str:
        _refuse_text("")
    message = f"must be an array of token ids or an array of such arrays, not {kind(value)}."
    raise FieldError("invalid_type", message)


def _refuse_text(path: str) -> NoReturn:
    message = (
        "this model takes prompts as token ids, not as text. POST /v1/tokenize turns text into ids."
    )
    raise FieldError("text_prompt_not_supported", message, path)


def _refuse_mixed(path: str) -> NoReturn:
    message = "a prompt must not mix token ids, texts and arrays. Send elements of one kind."
    raise FieldError("mixed_prompt", message, path)


def _refuse_single(value: list[Any], vocab_size: int) -> NoReturn:
    if type(value[0]) is str:
        _refuse_texts(value)
    for index, item in enumerate(value):
        if index and type(item) in (str, list):
            _refuse_mixed(f"[{index}]")
        check_token_id(item, vocab_size, f"[{index}]")
    raise AssertionError("_all_ids refused a valid prompt")


def _refuse_texts(value: list[Any]) -> NoReturn:
    for index, item in enumerate(value):
        if type(item) in (int, list):
            _refuse_mixed(f"[{index}]")
        if type(item) is not str:
            check_token_id(item, 0, f"[{index}]")
    # The client probably meant a numeral as an id, so the error points at it.
    numeral = next((index for index, item in enumerate(value) if item.strip().isdecimal()), None)
    _refuse_text("" if numeral is None else f"[{numeral}]")


def _refuse_member(prompt: Any, vocab_size: int, path: str) -> NoReturn:
    if type(prompt) in (int, str):
        _refuse_mixed(path)
    if type(prompt) is not list:
        message = f"must be an array of token ids, not {kind(prompt)}."
        raise FieldError("invalid_type", message, path)
    if not prompt:
        raise FieldError("empty_array", "must hold at least one token id.", path)
    for index, item in enumerate(prompt):
        if index and type(item) is str:
            _refuse_mixed(f"{path}[{index}]")
        check_token_id(item, vocab_size, f"{path}[{index}]")
    raise AssertionError("_all_ids refused a valid prompt")
