"""The prompt's text in front of a completion's. A character may begin in one and end in the other:
then the prompt alone decodes to U+FFFD, and the completion's text has the whole character.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from completions.catalog import tokenization
from completions.catalog.model_files import ModelFiles
from completions.contract.token_bytes import REPLACEMENT, take_unfinished
from completions.jobs.events import ChoiceEvent
from completions.responses import token_texts
from completions.responses.response_context import OpenEnd, ResponseFields
from completions.responses.token_texts import TokenTexts

_MAX_OPEN_BYTES = 3
"""Bytes, and so tokens, of a character that is not whole."""


@dataclass(frozen=True, slots=True)
class Echoes:
    """The texts of a request's prompts."""

    texts: list[str]
    open_ends: list[OpenEnd | None]
    """By prompt; empty if all prompts end between characters."""


def echo_prompts(
    model: ModelFiles, prompts: Sequence[Sequence[int]], skip_special_tokens: bool
) -> Echoes:
    decoded = tokenization.decode_all(model, prompts, skip_special_tokens)
    if not any(text.endswith(REPLACEMENT) for text in decoded):
        return Echoes(decoded, [])
    texts = TokenTexts(model)
    pairs = zip(prompts, decoded, strict=True)
    return Echoes(
        decoded, [_open_end(texts, prompt, text, skip_special_tokens) for prompt, text in pairs]
    )


def _open_end(texts: TokenTexts, prompt: Sequence[int], text: str, skip: bool) -> OpenEnd | None:
    positions: list[int] = []  # of the last tokens with text, the last one first
    for position in range(len(prompt) - 1, -1, -1):
        if texts.is_visible(prompt[position], skip):
            positions.append(position)
        if len(positions) == _MAX_OPEN_BYTES:
            break
    begun = take_unfinished(
        b"".join(texts.get_bytes(prompt[position]) for position in reversed(positions))
    )
    if not begun:  # the text really has U+FFFD
        return None
    if texts.is_byte_level:
        return OpenEnd(text.removesuffix(REPLACEMENT), begun.hex())
    # Byte fallback: each byte is a token, and a run of them is replaced as a whole.
    before = list(prompt[: positions[len(begun) - 1]])
    return OpenEnd(texts.decode(before, skip), begun.hex())


class Echo:
    """The text of one choice's prompt. It waits for the completion's first text if the prompt ends
    within a character."""

    def __init__(self, context: ResponseFields, index: int) -> None:
        assert context.echo is not None
        prompt = index // context.n
        self._text = context.echo[prompt]
        self._open = context.open_ends[prompt] if context.open_ends else None
        self._context = context
        self._token_ids: list[int] = []
        self._waits = True
        self.length = len(self._text if self._open is None else self._open.before)
        """How many characters come before the completion's text, as far as is known."""

    def push(self, event: ChoiceEvent) -> str:
        """Return what comes before the event's text."""
        if not self._waits:
            return ""
        if self._open is not None:
            self._token_ids += event.token_ids
            if not event.text and event.finish_reason is None:
                return ""
            if self._is_completed_by(event.text):
                self._text = self._open.before
        self._waits, self.length = False, len(self._text)
        return self._text

    def _is_completed_by(self, text: str) -> bool:
        """Return whether the completion's first character is the one that begins in the prompt, and
        not another one that begins with the same bytes."""
        assert self._open is not None
        character, begun = text[:1].encode(), bytes.fromhex(self._open.begun)
        if not character.startswith(begun):
            return False
        texts = token_texts.load_token_texts(self._context.served_model)
        if texts.is_byte_level and text[:1] == REPLACEMENT:
            # The engine leaves a begun U+FFFD out, since the prompt's text shows it: a later one.
            return False
        data = b"".join(
            texts.get_bytes(token_id)
            for token_id in self._token_ids
            if texts.is_visible(token_id, True)
        )
        return data.startswith(character[len(begun) :])
