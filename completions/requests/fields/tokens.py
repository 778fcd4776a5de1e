"""Fields of token ids, and texts as token ids: the model's vocabulary decides what is valid."""

from typing import Final, Literal, overload

from django.conf import settings

from completions.catalog import tokenization
from completions.catalog.control_tokens import find_control_tokens
from completions.catalog.model_files import ModelFiles
from completions.catalog.tokenization import TokenIds
from completions.chat.conversation import can_trace
from completions.chat.prompt_text import PromptText
from completions.contract.sampling import LOGIT_BIAS
from completions.exceptions import CONTEXT_EXCEEDED, FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    SHOWN_NAME,
    Field,
    T,
    check_number,
    expect,
    format_number,
    get_files,
    make_bounds,
    name_type,
)
from completions.requests.fields.lists import check_count

TOKEN_ID: Final = {"type": "integer", "minimum": 0}
MAX_BIASES = 1024
MAX_CHARACTERS = 1024 * 1024
"""Characters that a text may always have where only its tokens are wanted, even if the model's
context cannot hold them."""
ALLOW = "allow"
"""The setting that lets messages contain special tokens."""


def check_token_id(value: object, vocab_size: int, path: str) -> None:
    """Raise FieldError unless `value` is an id of the vocabulary."""
    if type(value) is not int:
        raise FieldError(
            f"must be an integer token id, not {name_type(value)}.", path, code="invalid_type"
        )
    if not 0 <= value < vocab_size:
        message = f"token id {format_number(value)} is outside the vocabulary (0-{vocab_size - 1})."
        raise FieldError(message, path, code="invalid_token_id")


def encode_text(model: ModelFiles, text: str, path: str = "", special: bool = True) -> list[int]:
    """Return the tokens of a text. `special` adds the tokenizer's own, such as BOS. Raises
    FieldError."""
    check_length(model, text, path)
    return tokenization.encode_all(model, [text], special)[0]


def encode_checked(
    model: ModelFiles, text: str, path: str, special: bool, at_least: int
) -> TokenIds:
    """Return the same for an answer in JSON. A text may always have `at_least` characters."""
    check_length(model, text, path, at_least)
    return tokenization.encode(model, text, special)


def encode_prompt(
    model: ModelFiles, prompt: PromptText, special: bool = False, at_least: int = 0
) -> TokenIds:
    """Return the tokens of messages. What the template did not write becomes no special tokens.
    Raises FieldError."""
    check_length(model, prompt, "messages", at_least)
    if settings.SPECIAL_TOKENS_IN_CONTENT != ALLOW and can_trace(model):
        pieces = find_control_tokens(model).split(prompt, prompt.mask)
        if pieces is not None:
            return tokenization.encode_pieces(model, pieces, special)
    return tokenization.encode(model, prompt, special)


def check_length(model: ModelFiles, text: str, path: str = "", at_least: int = 0) -> None:
    """Raise FieldError for a text too long for any context of the model, and longer than
    `at_least` characters. Tokenizing it would take seconds and hundreds of bytes per token."""
    max_characters = max(model.max_model_len * model.longest_token, at_least)
    if len(text) > max_characters:
        raise make_context_error(
            model.max_model_len,
            f"your text has {len(text)} characters, and at most {max_characters} fit. Please "
            "reduce the length of the text.",
            path,
        )


def make_context_error(max_model_len: int, however: str, path: str = "") -> FieldError:
    """Return the error for more tokens than a model's context holds, in the words of OpenAI's API:
    clients that shorten the request or choose another model look for them."""
    message = f"This model's maximum context length is {max_model_len} tokens. However, {however}"
    return FieldError(message, path, code=CONTEXT_EXCEEDED)


class TokenIdsField(Field[T]):
    """Up to `max_length` token ids."""

    @overload
    def __init__(
        self: "TokenIdsField[list[int]]", help: str = "", *, required: Literal[True]
    ) -> None: ...
    @overload
    def __init__(
        self: "TokenIdsField[list[int] | None]", help: str = "", *, max_length: int | None = None
    ) -> None: ...
    def __init__(
        self, help: str = "", *, max_length: int | None = None, required: bool = False
    ) -> None:
        super().__init__(help, required=required)
        self.max_length = max_length

    def to_schema(self) -> dict[str, object]:
        return {"type": "array", "items": TOKEN_ID, **make_bounds(maxItems=self.max_length)}

    def read(self, data: object, context: Context | None = None) -> list[int]:
        vocab_size = get_files(context).vocab_size
        data = expect(data, list, "an array of token ids")
        check_count(data, self.max_length, "ids")
        for index, token in enumerate(data):
            path = f"[{index}]"
            if type(token) is bool:
                raise FieldError(
                    "must be a token id, not a boolean.", path, code="invalid_token_id"
                )
            check_token_id(token, vocab_size, path)
        return list(data)


class LogitBiasField(Field[dict[int, float] | None]):
    """A map from token ids, as decimals, to the numbers that are added to their logits."""

    def to_schema(self) -> dict[str, object]:
        return {
            "type": "object",
            "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
            "additionalProperties": {
                "type": "number",
                "minimum": LOGIT_BIAS.low,
                "maximum": LOGIT_BIAS.high,
            },
            "maxProperties": MAX_BIASES,
        }

    def read(self, data: object, context: Context | None = None) -> dict[int, float]:
        vocab_size = get_files(context).vocab_size
        data = expect(data, dict, "an object")
        if len(data) > MAX_BIASES:
            raise FieldError(f"has {len(data)} entries; it may have at most {MAX_BIASES}.")
        biases = {}
        for key, number in data.items():
            path = key[:SHOWN_NAME]
            token = _parse_decimal(key)
            if token is None or token >= vocab_size:
                message = f"keys must be token ids (0-{vocab_size - 1}) as decimals."
                raise FieldError(message, path, code="invalid_token_id")
            biases[token] = check_number(number, LOGIT_BIAS, path)
        return biases


def _parse_decimal(text: str) -> int | None:
    """Return the value of a decimal without sign and leading zeros, so that no two keys mean the
    same id."""
    if len(text) > 20 or not (text.isascii() and text.isdigit()):
        return None
    return None if text[0] == "0" and text != "0" else int(text)
