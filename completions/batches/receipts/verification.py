"""Checks a receipt without running the model: could the request produce this output?"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from completions.accounts.keys import Principal
from completions.batches.receipts.receipt import digest
from completions.batches.receipts.source import Receipted
from completions.batches.results.answers import list_choices
from completions.catalog.model_files import ModelFiles
from completions.chat.chat_style import find_chat_style
from completions.chat.markers import MarkerFilter
from completions.chat.tool_format import NAME
from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.contract.token_bytes import TokenBytes
from completions.contract.token_origins import TokenOrigin
from completions.exceptions import APIError
from completions.grammars import tokens
from completions.requests import preparation, validation
from completions.requests.fair_semaphore import Checks

_CHANGING_TEXT = ("echo", "suffix", "skip_special_tokens", "spaces_between_special_tokens", "tools")
"""Fields that make the returned text differ from the text of its tokens."""
_OTHER_MESSAGE = "its message differs from its text"
_FREE_ORIGINS = (TokenOrigin.GIVEN, TokenOrigin.SAMPLED)
_ORIGINS = (*_FREE_ORIGINS, TokenOrigin.GRAMMAR)
_ANYONE = Principal(0, 0, "", (), None)
"""A principal that may use every model."""


async def find_faults(checks: Checks, line: Receipted) -> list[str]:
    """Return what is wrong with a line; empty if its receipt is valid."""
    try:
        prepared = await preparation.prepare_offline(checks, line.endpoint, line.body, _ANYONE)
    except APIError as error:
        return [f"the request is refused: {error.message}"]
    files = prepared.request.model.files
    receipt, request = line.receipt, prepared.job_request
    faults = []
    grammar = request.grammar if line.grammar is None else line.grammar
    for name, actual in (
        ("model", files.entry.id),
        ("tokenizer", files.tokenizer_digest),
        ("prompt", digest(request.prompts)),
        ("grammar", digest(grammar) if grammar is not None else None),
    ):
        if receipt[name] != actual:
            faults.append(f"the {name} is not the receipt's")
    if line.body.get("seed") is not None and receipt["seed"] != request.sampling.seed:
        faults.append("the seed is not the receipt's")
    if faults:
        return faults
    return list(_check_choices(line, grammar, files, _list_stop_ids(line.body, files)))


def _list_stop_ids(body: dict[str, Any], files: ModelFiles) -> frozenset[int]:
    """Return tokens that end an output and need not be in its grammar."""
    return frozenset(files.eos_token_ids) | frozenset(body.get("stop_token_ids") or ())


def _check_choices(
    line: Receipted, grammar: str | None, files: ModelFiles, stops: frozenset[int]
) -> Iterator[str]:
    changes_text = any(line.body.get(name) is not None for name in _CHANGING_TEXT)
    choices = list_choices(line.answer)
    outputs = line.receipt["output_ids"]
    if len(choices) != len(outputs):
        yield f"it has {len(choices)} choices and {len(outputs)} outputs"
        return
    for index, (choice, ids) in enumerate(zip(choices, outputs, strict=True)):
        where = f"choice {index}: " if len(choices) > 1 else ""
        if fault := _check_ids(ids, choice, is_free=grammar is None):
            yield where + fault
        if grammar is not None and (fault := _check_grammar(grammar, ids, choice, files, stops)):
            yield where + fault
        if not changes_text and (fault := _check_text(ids, choice, files)):
            yield where + fault
        if choice.get("message") is not None and (fault := _check_message(ids, choice, files)):
            yield where + fault


def _check_ids(ids: Sequence[int], choice: Any, *, is_free: bool) -> str | None:
    """Compare the ids with those that the choice shows, and the form of its mask. Without a
    constraint, no token is forced."""
    if choice.get("token_ids", ids) != ids:
        return "its token_ids are not the receipt's output_ids"
    mask = choice.get("token_mask")
    if mask is None:
        return None
    origins = _FREE_ORIGINS if is_free else _ORIGINS
    if len(mask) != len(ids) or not all(origin in origins for origin in mask):
        return "its token_mask is not one of these tokens"
    return None


def _check_grammar(
    grammar: str, ids: Sequence[int], choice: Any, files: ModelFiles, stops: frozenset[int]
) -> str | None:
    """Walk the ids through the matcher that the engine uses. Returns what is wrong, or None."""
    source = validation.make_token_source(files)
    matcher = LLMatcher(tokens.load(source), grammar, log_level=0, limits=VALIDATION_LIMITS)
    text_ids = list(ids[:-1] if ids and ids[-1] in stops else ids)
    taken = matcher.try_consume_tokens(text_ids)
    if taken < len(text_ids):
        return f"token {taken} ({text_ids[taken]}) is not in its grammar"
    ended = choice["finish_reason"] in ("stop", "tool_calls") and _get_matched_stop(choice) is None
    if ended and not matcher.is_accepting():
        return "it ends before its grammar does"
    return None


def _get_matched_stop(choice: Any) -> object:
    """Return the stop string or pattern that ended a choice; None for a stop token, which is among
    its ids."""
    return choice.get("matched_stop") if isinstance(choice.get("matched_stop"), str) else None


def _check_text(ids: Sequence[int], choice: Any, files: ModelFiles) -> str | None:
    """Compare the ids with the text, as far as the text shows them.

    A stop may have cut the text, and its last character may be incomplete.
    """
    read = _token_bytes(files)
    text = _get_text(choice, files)
    if text is None or not read.is_byte_level:
        return None
    content = b"".join(read.get(id) for id in ids if id not in read.special_ids)
    incomplete = "\N{REPLACEMENT CHARACTER}"
    decoded, visible = content.decode(errors="replace"), text.rstrip(incomplete)
    is_cut = choice.get("matched_stop") is not None
    if decoded.startswith(visible) if is_cut else decoded.rstrip(incomplete) == visible:
        return None
    return "its text differs from what its tokens decode to"


def _check_message(ids: Sequence[int], choice: Any, files: ModelFiles) -> str | None:
    """Compare a message with the text that it was read from. Where that has marks of reasoning or
    calls, what the message shows need only be parts of it."""
    message, read = choice["message"], _token_bytes(files)
    shown = [message.get(name) or "" for name in ("content", "reasoning_content")]
    text = choice.get("text")
    marks = _list_marks(files)
    if text is None:
        if not read.is_byte_level:
            return None
        text = b"".join(map(read.get, ids)).decode(errors="replace")
        shown = [part.rstrip("\N{REPLACEMENT CHARACTER}") for part in shown]
    elif not message.get("tool_calls") and not any(mark in text for mark in marks):
        is_same = "" in shown and "".join(shown).strip() == text.strip()
        return None if is_same else _OTHER_MESSAGE
    hidden = MarkerFilter([mark for mark in marks if mark])
    text = hidden.push(text) + hidden.finish()
    parts = [
        list("".join(part.split())) if message.get("tool_calls") else part.split() for part in shown
    ]
    return None if all(_has_in_order(text, part) for part in parts) else _OTHER_MESSAGE


@lru_cache(4)
def _list_marks(files: ModelFiles) -> Sequence[str]:
    """Return the texts that a parser may take out of a message, or that begin what it moves."""
    style, read = find_chat_style(files), _token_bytes(files)
    marks = [*(style.think_tags or ())]
    marks += [read.get(id).decode(errors="replace") for id in read.special_ids]
    if style.tool_format is not None:
        marks += [*style.tool_format.hidden, style.tool_format.opening.partition(NAME)[0].strip()]
    return marks


def _has_in_order(text: str, pieces: Sequence[str]) -> bool:
    at = 0
    for piece in pieces:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _get_text(choice: Any, files: ModelFiles) -> str | None:
    """Return the text of all tokens of a choice; None where a parser moved parts of it to other
    fields."""
    if "text" in choice:
        return str(choice["text"])
    message = choice["message"]
    style = find_chat_style(files)
    is_parsed = style.think_tags is not None or bool(style.tool_format and style.tool_format.hidden)
    if message.get("tool_calls") or message["content"] is None or is_parsed:
        return None
    return str(message["content"])


@lru_cache(4)
def _token_bytes(files: ModelFiles) -> TokenBytes:
    return TokenBytes(files.tokenizer)
