"""A turn's messages as the text that continues the tokens of its session."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from completions.catalog.model_files import ModelFiles
from completions.chat.continuation import Render, continue_text
from completions.chat.prompt_text import PromptText
from completions.chat.template import ChatTemplateError
from completions.exceptions import FieldError
from completions.requests.past import Past


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
    messages: Sequence[Mapping[str, Any]],
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


def _find_message(parts: Sequence[tuple[str, int]], at: int) -> int:
    """Return the index of the message whose part of the text has the character `at`."""
    for text, message in parts:
        if at < len(text):
            return message
        at -= len(text)
    return parts[-1][1]
