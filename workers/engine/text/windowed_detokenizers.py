"""Detokenizers for decoders that only the tokenizer itself knows. No torch.

They decode a window of recent tokens with and without the newest and take the difference. The
window begins and ends between characters, so a decoding of the window says what one of all tokens
would say.
"""

from collections.abc import Sequence
from typing import Self

from tokenizers import Tokenizer

from completions.contract.token_bytes import REPLACEMENT, is_text, take_unfinished

CONTEXT_TOKENS = 6
"""Prompt tokens that a window has before the output, for a word boundary in front."""
_MOST_KEPT = 2 * CONTEXT_TOKENS
"""Tokens of a window without text after which no more are added."""


class WindowedDetokenizer:
    """Decodes tokens that contribute the bytes of ``table`` to a text, those without bytes nothing.

    The window exists because decoders such as SentencePiece's drop a space before their first
    token. A token of ``joined_ids`` follows another one without a space.
    """

    def __init__(
        self, tokenizer: Tokenizer, table: Sequence[bytes], joined_ids: frozenset[int] = frozenset()
    ) -> None:
        self._tokenizer = tokenizer
        self.table = table
        self._joined_ids = joined_ids
        self._window: list[int] = []
        self._num_read = 0
        self._open = b""  # what the window has of a character that is not whole
        self._was_open = False  # what is read has such a character too
        self._follows_prompt = False  # what is read is the prompt, whose text shows U+FFFD for it

    def restart(self, token_ids: Sequence[int], rest: bytes = b"") -> None:
        """Make these tokens the window. Their text is known, and ends with the ``rest`` of a
        character that is not whole."""
        self._window, self._open = list(token_ids), rest
        self._advance(0)
        self._follows_prompt = True

    def push(self, token_id: int) -> str:
        if not self.table[token_id]:
            return ""
        joined = token_id in self._joined_ids and self._joined_ids.issuperset(self._window[-1:])
        text = self.extend([token_id])
        return text.removeprefix(" ") if joined else text

    def extend(self, token_ids: Sequence[int]) -> str:
        """Add tokens with text. Return the characters that they complete."""
        self._window += token_ids
        self._open = take_unfinished(
            self._open + b"".join(self.table[token_id] for token_id in token_ids)
        )
        text = self._unread()
        if self._open:
            text = text[:-1]
        if text:
            self._advance(self._num_read)
        else:
            del self._window[_MOST_KEPT:]
        return text

    def flush(self) -> str:
        text = self._unread()
        self._open = b""
        self._advance(self._num_read)
        return text

    def copy(self) -> Self:
        clone = type(self)(self._tokenizer, self.table, self._joined_ids)
        clone._window, clone._num_read = self._window.copy(), self._num_read
        clone._open, clone._was_open = self._open, self._was_open
        clone._follows_prompt = self._follows_prompt
        return clone

    def _unread(self) -> str:
        """Return the text of the tokens that are not read. One U+FFFD stands for the bytes of a
        character that is not whole."""
        read = self._decode(self._window[: self._num_read])
        text = self._decode(self._window)
        if self._was_open and not (self._follows_prompt and text.startswith(read)):
            read = read[:-1]
        return text[len(read) :]

    def _advance(self, num_dropped: int) -> None:
        """Drop tokens from the window, and take the others as read."""
        del self._window[:num_dropped]
        self._num_read = len(self._window)
        self._was_open, self._follows_prompt = bool(self._open), False

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text


class ByteFallbackDetokenizer:
    """Gives the bytes of a character to ``window`` once it is whole.

    Decoders with byte fallback replace every byte of a run that is not UTF-8. So nothing is shown
    of a character that is not whole; and once bytes are wrong, so is every byte up to the next
    other token.
    """

    def __init__(self, window: WindowedDetokenizer, byte_ids: frozenset[int]) -> None:
        """``byte_ids`` are tokens of one byte."""
        self.window = window
        self._byte_ids = byte_ids
        self._character: list[int] = []
        self._num_shown = 0  # tokens of the character that the prompt's text shows
        self._is_broken = False

    def begin(self, context: Sequence[int]) -> None:
        """Follow the last tokens of a prompt, a few more than ``CONTEXT_TOKENS``."""
        first = max(0, len(context) - CONTEXT_TOKENS)
        while first > 0 and self._continues(context[first]):
            first -= 1
        context = context[first:]
        run = len(context)
        while run > 0 and context[run - 1] in self._byte_ids:
            run -= 1
        data = self._bytes(context[run:])
        rest = take_unfinished(data)
        self._is_broken = not is_text(data.removesuffix(rest))
        if rest and not self._is_broken:
            self._character = list(context[-len(rest) :])
            self._num_shown = len(rest)
        self.window.restart(context[: len(context) - self._num_shown])

    def push(self, token_id: int) -> str:
        if not self.window.table[token_id]:
            return ""
        if token_id not in self._byte_ids:
            text = self._give_up()
            self._is_broken = False
            return text + self.window.push(token_id)
        if self._is_broken:
            return REPLACEMENT
        self._character.append(token_id)
        data = self._bytes(self._character)
        if is_text(data):
            character, self._character, self._num_shown = self._character, [], 0
            return self.window.extend(character)
        return "" if take_unfinished(data) == data else self._give_up()

    def flush(self) -> str:
        return self._give_up() + self.window.flush()

    def copy(self) -> Self:
        clone = type(self)(self.window.copy(), self._byte_ids)
        clone._character, clone._num_shown = self._character.copy(), self._num_shown
        clone._is_broken = self._is_broken
        return clone

    def _give_up(self) -> str:
        """Replace the bytes of a character that will never be whole, if there are any."""
        character, self._character = self._character, []
        if not character:
            return ""
        self._is_broken = True
        self.window.restart(character)
        num_shown, self._num_shown = self._num_shown, 0
        return REPLACEMENT * (len(character) - num_shown)

    def _continues(self, token_id: int) -> bool:
        """Return whether a token is a later byte of a character."""
        return token_id in self._byte_ids and self.window.table[token_id][0] & 0xC0 == 0x80

    def _bytes(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.window.table[token_id] for token_id in token_ids)
