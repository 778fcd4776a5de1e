"""A turn's messages as the text that continues the tokens of its session."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from completions.catalog.model_files import ModelFiles
from completions.chat.continuation import Render, continue_text
from completions.chat.prompt_text import PromptText
from completions.chat.template import ChatTemplateError
from completions.exceptions import APIError, FieldError
from completions.models import OnDrift
from completions.requests.context import Context
from completions.requests.fields.tokens import encode_prompt
from completions.requests.past import INHERITED, Past, Turn


class PastContinuation(NamedTuple):
    so_far: str
    """What the session's tokens read as."""
    text: PromptText
    """What comes after it."""
    whole: PromptText
    """The conversation as the template writes it now."""
    drift: int | None
    """The first message that the template writes in another way."""


def continue_past(
    past: Past,
    render: Render,
    messages: Sequence[Mapping[str, object]],
    files: ModelFiles,
) -> PastContinuation:
    """Return how the session goes on with the messages after those that it has. Raises
    FieldError."""
    if not past.turns:
        text = render(messages, True)
        return PastContinuation("", text, text, None)
    parts = past.list_parts()
    so_far = "".join(text for text, _ in parts)
    last = past.turns[-1].choice.token_ids
    added = files.tokenizer.get_added_tokens_decoder().values()
    said = past.messages or ()
    try:
        found = continue_text(
            render,
            so_far,
            messages,
            len(said),
            [token.content for token in added if token.special],
            is_ended=bool(last) and last[-1] in files.eos_token_ids,
        )
    except ChatTemplateError as error:
        raise FieldError(f"{error}. Send on_drift rebase.", "messages") from error
    drift = None if found.differs_at is None else _find_message(parts, found.differs_at)
    return PastContinuation(so_far, found.text, found.whole, drift)


def make_turn(past: Past, continuation: PastContinuation, context: Context, on_drift: str) -> Turn:
    """Return the turn of a body whose messages go on as `continuation` says: only the new ones
    become tokens, unless the template writes earlier ones in another way and the turn rebases.
    Raises APIError where it fails instead."""
    given, drift = context.given, continuation.drift
    if drift is not None and on_drift == OnDrift.FAIL:
        message = (
            f"the chat template writes message {drift} in another way now. Send on_drift "
            "keep or rebase, or a turn after an earlier choice."
        )
        raise APIError("session_drift", message, "messages")
    is_rebased = drift is not None and on_drift == OnDrift.REBASE
    text = continuation.whole if is_rebased else continuation.text
    said = past.messages
    assert said is not None  # else the session takes no messages
    messages: Any = given["messages"]
    return Turn(
        token_ids=encode_prompt(context.model.files, text).to_list(),
        text=str.__str__(text),  # without its mask
        messages=messages[len(said) :],
        fields={name: given[name] for name in INHERITED if given.get(name) is not None},
        drift=drift,
        is_rebased=is_rebased,
    )


def _find_message(parts: Sequence[tuple[str, int]], at: int) -> int:
    """Return the index of the message whose part of the text has the character `at`."""
    for text, message in parts:
        if at < len(text):
            return message
        at -= len(text)
    return parts[-1][1]
