"""The strict rules for token-ID prompts: a tight pass for good ones, a careful one for bad."""

from typing import Any, NoReturn

from completions.errors import FieldError

MAX_PROMPTS = 256
"""Prompts in one request."""

_IDS_ONLY = {int}  # `type(True)` is bool, so a set of exact types tells them apart
_JSON_TYPES = {
    bool: "a boolean",
    int: "an integer",
    float: "a fractional number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def kind(value: Any) -> str:
    """The JSON type of a value, for messages."""
    return _JSON_TYPES.get(type(value), "null")


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
    check_prompt_count(len(value))
    for index, prompt in enumerate(value):
        if type(prompt) is not list or not prompt or not _all_ids(prompt, vocab_size):
            _refuse_member(prompt, vocab_size, f"[{index}]")
    return value


def check_prompt_count(count: int) -> None:
    """Raise FieldError for more prompts than go into one request."""
    if count > MAX_PROMPTS:
        message = f"holds {count} prompts; at most {MAX_PROMPTS} go into one request."
        raise FieldError("array_above_max_length", message)


def _all_ids(ids: list[Any], vocab_size: int) -> bool:
    return set(map(type, ids)) == _IDS_ONLY and min(ids) >= 0 and max(ids) < vocab_size


def check_token_id(value: Any, vocab_size: int, path: str) -> None:
    """Raise FieldError unless `value` is an id of the vocabulary."""
    if type(value) is not int:
        raise FieldError("invalid_type", f"must be an integer token id, not {kind(value)}.", path)
    if not 0 <= value < vocab_size:
        shown = str(value) if abs(value) < 10**20 else "of more than 20 digits"
        message = f"token id {shown} is outside the vocabulary (0-{vocab_size - 1})."
        raise FieldError("invalid_token_id", message, path)


# The careful pass: what exactly is wrong, and where first --------------------------------------


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
    message = "token ids, texts and arrays cannot stand side by side in one prompt."
    raise FieldError("mixed_prompt", message, path)


def _refuse_single(value: list[Any], vocab_size: int) -> NoReturn:
    if type(value[0]) is str:
        _refuse_texts(value)
    for index, item in enumerate(value):
        if index and type(item) in (str, list):
            _refuse_mixed(f"[{index}]")
        check_token_id(item, vocab_size, f"[{index}]")
    raise AssertionError("the tight pass refused a good prompt")


def _refuse_texts(value: list[Any]) -> NoReturn:
    for index, item in enumerate(value):
        if type(item) in (int, list):
            _refuse_mixed(f"[{index}]")
        if type(item) is not str:
            check_token_id(item, 0, f"[{index}]")
    # A numeral was probably meant as an id, so the error points at it.
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
    raise AssertionError("the tight pass refused a good prompt")
