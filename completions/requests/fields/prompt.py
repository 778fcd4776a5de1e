"""The field `prompt`: token ids, or texts for models that take them, one or a batch."""

from typing import Any, NoReturn, TypeGuard

from completions.catalog import tokenization
from completions.catalog.model_files import ModelFiles
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import Field, IntegerField, expect, get_files, name_type
from completions.requests.fields.tokens import (
    TOKEN_ID,
    TokenIdsField,
    check_length,
    check_token_id,
    encode_text,
)

MAX_PROMPTS = 256
"""Prompts in one request."""
_IDS_ONLY = {int}  # the set of exact types: `type(True)` is bool


class PromptField(Field[list[list[int]]]):
    """Read as a batch: a list of lists of token ids."""

    def to_schema(self) -> dict[str, object]:
        ids = {"type": "array", "items": TOKEN_ID, "minItems": 1}
        texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        several = {"minItems": 1, "maxItems": MAX_PROMPTS}
        batches = [{"type": "array", "items": ids, **several}, {**texts, **several}]
        return {"anyOf": [ids, *batches, {"type": "string"}]}

    def read(self, data: object, context: Context | None = None) -> list[list[int]]:
        model = get_files(context)
        if model.entry.text_prompts and _is_text(data):
            past = None if context is None else context.earlier.past
            begins = past is None or not past.token_ids
            return _tokenize(data, model, begins)
        return parse_prompt(data, model.vocab_size)


class TextPromptField(PromptField):
    """One text or several. Read as a batch of token ids."""

    def to_schema(self) -> dict[str, object]:
        texts = {"type": "array", "items": {"type": "string"}}
        return {"anyOf": [{"type": "string"}, {**texts, "minItems": 1, "maxItems": MAX_PROMPTS}]}

    def read(self, data: object, context: Context | None = None) -> list[list[int]]:
        if not _is_text(data):
            message = f"must be a string or an array of strings, not {name_type(data)}."
            raise FieldError(message, code="invalid_type")
        return super().read(data, context)


class IdsPromptField(PromptField):
    """Token ids, or a batch of them. Read as a batch."""

    def to_schema(self) -> dict[str, object]:
        ids = {"type": "array", "items": TOKEN_ID, "minItems": 1}
        return {"anyOf": [ids, {"type": "array", "items": ids, "maxItems": MAX_PROMPTS}]}

    def read(self, data: object, context: Context | None = None) -> list[list[int]]:
        return parse_prompt(data, get_files(context).vocab_size)


class RawPromptField(Field[list[int] | None]):
    """A chat's prompt without a template: a text or token ids. Read as token ids."""

    accepts = {"anyOf": [{"type": "string"}, TokenIdsField().to_schema()]}

    def read(self, data: object, context: Context | None = None) -> list[int]:
        if type(data) not in (str, list):
            message = f"must be a string or an array of token ids, not {name_type(data)}."
            raise FieldError(message, code="invalid_type")
        if type(data) is str:
            return encode_text(get_files(context), data)
        return TokenIdsField().read(data, context)


TO_CONTEXT = -1
"""The value of `truncate_prompt_tokens` that keeps as many tokens as fit."""


class TruncationField(IntegerField[int | None]):
    """How many tokens of a prompt to keep, from its end: at least 1, or TO_CONTEXT."""

    def __init__(self, help: str) -> None:
        super().__init__(help, min_value=TO_CONTEXT)

    def read(self, data: object, context: Context | None = None) -> int:
        kept = super().read(data, context)
        if not kept:
            raise FieldError("must be at least 1, or -1 for as many as fit, not 0.")
        return kept


def _is_text(value: object) -> TypeGuard[str | list[str]]:
    return type(value) is str or (type(value) is list and set(map(type, value)) == {str})


def _tokenize(value: str | list[str], model: ModelFiles, begins: bool) -> list[list[int]]:
    """Return texts as token ids; with BOS where they begin a prompt and the tokenizer adds it."""
    texts = [value] if isinstance(value, str) else value
    paths = [""] if isinstance(value, str) else [f"[{index}]" for index in range(len(texts))]
    _check_prompt_count(len(texts))
    for text, path in zip(texts, paths, strict=True):
        check_length(model, text, path)
    prompts = tokenization.encode_all(model, texts, begins)
    for prompt, path in zip(prompts, paths, strict=True):
        if not prompt:
            raise FieldError("must hold at least one token.", path, code="empty_array")
    return prompts


def parse_prompt(value: object, vocab_size: int) -> list[list[int]]:
    """Return a prompt of token ids in [0, vocab_size), or a batch of them, as a batch. A FieldError
    names the first offending element: `[1][3]`."""
    if type(value) is str:
        _refuse_text("")
    if type(value) is not list:
        message = (
            f"must be an array of token ids or an array of such arrays, not {name_type(value)}."
        )
        raise FieldError(message, code="invalid_type")
    if value and type(value[0]) is str:
        _refuse_texts(value)
    if not value or type(value[0]) is not list:
        _check_ids(value, vocab_size, "", mixing=(str, list))
        return [value]
    _check_prompt_count(len(value))
    for index, prompt in enumerate(value):
        path = f"[{index}]"
        if type(prompt) in (int, str):
            _refuse_mixed(path)
        expect(prompt, list, "an array of token ids", path)
        _check_ids(prompt, vocab_size, path, mixing=(str,))
    return value


def _check_prompt_count(count: int) -> None:
    if count > MAX_PROMPTS:
        message = f"has {count} prompts; one request may have at most {MAX_PROMPTS}."
        raise FieldError(message, code="array_above_max_length")


def _check_ids(ids: list[Any], vocab_size: int, path: str, mixing: tuple[type, ...]) -> None:
    """Raise FieldError unless all are ids. A later item of a type in `mixing` means that the
    client mixes kinds of prompts."""
    if not ids:
        raise FieldError("must hold at least one token id.", path, code="empty_array")
    if set(map(type, ids)) == _IDS_ONLY and min(ids) >= 0 and max(ids) < vocab_size:
        return
    for index, item in enumerate(ids):
        if index and type(item) in mixing:
            _refuse_mixed(f"{path}[{index}]")
        check_token_id(item, vocab_size, f"{path}[{index}]")


def _refuse_text(path: str) -> NoReturn:
    message = (
        "this model takes prompts as token ids, not as text. POST /v1/tokenize turns text into ids."
    )
    raise FieldError(message, path, code="text_prompt_not_supported")


def _refuse_mixed(path: str) -> NoReturn:
    message = "a prompt must not mix token ids, texts and arrays. Send elements of one kind."
    raise FieldError(message, path, code="mixed_prompt")


def _refuse_texts(value: list[Any]) -> NoReturn:
    for index, item in enumerate(value):
        if type(item) in (int, list):
            _refuse_mixed(f"[{index}]")
        if type(item) is not str:
            check_token_id(item, 0, f"[{index}]")
    # The client probably meant a numeral as an id, so the error points at it.
    numeral = next((index for index, item in enumerate(value) if item.strip().isdecimal()), None)
    _refuse_text("" if numeral is None else f"[{numeral}]")
