"""Fields of token ids and of texts that end a choice: what is allowed depends on the model."""

from typing import Any, Final

from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.requests.fields import SHOWN_NAME, StrictField, bounds, check_number, expect
from completions.requests.prompt import (
    MAX_PROMPTS,
    check_prompt_count,
    check_token_id,
    parse_prompt,
)

_TOKEN_ID: Final = {"type": "integer", "minimum": 0}


class PromptField(StrictField, serializers.ListField):
    """A prompt of token ids or a batch of them; what is allowed depends on the model."""

    def to_schema(self) -> dict[str, Any]:
        ids = {"type": "array", "items": _TOKEN_ID, "minItems": 1}
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


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is list and set(map(type, value)) == {str})


def _tokenized(value: str | list[str], model: ModelFiles) -> list[list[int]]:
    """Texts to ids as the model's tokenizer makes them, with BOS where it adds one."""
    texts = [value] if isinstance(value, str) else value
    check_prompt_count(len(texts))
    for index, text in enumerate(texts):
        check_text(model, text, "" if isinstance(value, str) else f"[{index}]")
    prompts = [list(encoding.ids) for encoding in model.tokenizer.encode_batch(texts)]
    for index, prompt in enumerate(prompts):
        if not prompt:
            path = "" if isinstance(value, str) else f"[{index}]"
            raise FieldError("empty_array", "must hold at least one token.", path)
    return prompts


def token_ids(
    model: ModelFiles, text: str, path: str = "", special: bool = True, at_least: int = 0
) -> list[int]:
    """A text's tokens, with the tokenizer's own such as BOS if `special`. Raises FieldError."""
    check_text(model, text, path, at_least)
    return list(model.tokenizer.encode(text, add_special_tokens=special).ids)


def check_text(model: ModelFiles, text: str, path: str = "", at_least: int = 0) -> None:
    """Raise FieldError for one that is longer than anything the model has room for, and than
    `at_least`: to find out by tokenizing takes seconds and hundreds of bytes per token."""
    most = max(model.max_model_len * model.longest_token, at_least)
    if len(text) > most:
        message = (
            f"has {len(text)} characters, and no more than {most} fit the model's context length "
            f"of {model.max_model_len} tokens. Shorten it."
        )
        raise FieldError("context_length_exceeded", message, path)


class TokenIdsField(StrictField, serializers.ListField):
    """Token ids of the model's vocabulary; `max_length` bounds their number."""

    def to_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": _TOKEN_ID, **bounds(maxItems=self.max_length)}

    def to_internal_value(self, data: Any) -> list[Any]:
        expect(data, list, "an array of token ids")
        if self.max_length is not None and len(data) > self.max_length:
            message = f"may hold at most {self.max_length} ids."
            raise FieldError("array_above_max_length", message)
        return list(data)

    def for_model(self, value: list[Any], model: ModelFiles) -> list[int]:
        for index, token in enumerate(value):
            path = f"[{index}]"
            if type(token) is bool:
                raise FieldError("invalid_token_id", "must be a token id, not a boolean.", path)
            check_token_id(token, model.vocab_size, path)
        return value


class LogitBiasField(StrictField, serializers.DictField):
    """Decimal token ids to numbers in [-100, 100]."""

    max_entries = 1024
    bound = 100

    def to_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
            "additionalProperties": {
                "type": "number", "minimum": -self.bound, "maximum": self.bound,
            },
            "maxProperties": self.max_entries,
        }  # fmt: skip

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        expect(data, dict, "an object")
        if len(data) > self.max_entries:
            raise FieldError("invalid_value", f"may hold at most {self.max_entries} entries.")
        return dict(data)

    def for_model(self, value: dict[str, Any], model: ModelFiles) -> dict[int, float]:
        biases = {}
        for key, number in value.items():
            path = key[:SHOWN_NAME]
            token = _decimal(key)
            if token is None or token >= model.vocab_size:
                message = f"keys are token ids (0-{model.vocab_size - 1}) as decimals."
                raise FieldError("invalid_token_id", message, path)
            biases[token] = check_number(number, low=-self.bound, high=self.bound, path=path)
        return biases


def _decimal(text: str) -> int | None:
    """A canonical decimal's value: no sign, no leading zero, so that no two keys are one id."""
    if len(text) > 20 or not (text.isascii() and text.isdigit()):
        return None
    return None if text[0] == "0" and text != "0" else int(text)
