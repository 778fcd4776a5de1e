"""Turns token ids into text piece by piece, without splitting a character. No torch.

Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM) are decoded from a table of each token's
bytes; any other decoder through the tokenizer itself, over a window of recent tokens.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol, Self

from tokenizers import Tokenizer

from completions.contract.token_bytes import TokenBytes, num_ids

_REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 6
"""Prompt tokens that a windowed decoder sees before the output, for a word boundary in front."""
_MOST_BYTES = 4
"""Of a character, each of which may be a token."""
_MOST_KEPT = _CONTEXT_TOKENS + _MOST_BYTES + 1
"""Tokens of a window after which no more is read from it."""


class Detokenizer(Protocol):
    """The text of one choice.

    The pieces together equal the decoding of all tokens at once; a character that stays
    incomplete becomes U+FFFD. Byte fallback is the exception: there, a later token can turn
    earlier bytes into U+FFFD, but characters that were already returned stay as they are.
    """

    def push(self, token_id: int) -> str:
        """Add a token. Return the characters that it completes."""

    def flush(self) -> str:
        """Return what is left of an incomplete character once no more tokens follow."""

    def copy(self) -> Self: ...


class Vocabulary:
    """A tokenizer's tokens as the engine reads them. Built once per model, then constant."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        """``size`` is the number of rows of the output layer, which may exceed the number of
        tokens."""
        self.tokenizer = tokenizer
        self.size = max(size, num_ids(tokenizer))
        """The bound of all ids; an id below it may stand for no token."""
        self.bytes = TokenBytes(tokenizer)
        self.token_bytes = self.bytes.table(self.size)
        """The bytes that each id contributes to a text."""
        special = self.bytes.special_ids
        self._visible_bytes = [
            b"" if i in special else text for i, text in enumerate(self.token_bytes)
        ]

    def detokenizer(
        self,
        prompt: Sequence[int],
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """Start the text that follows ``prompt``.

        Some decoders put a space between any two tokens. With ``spaces_between_special_tokens``
        False, no space separates two special tokens, as in vLLM.
        """
        if self.bytes.is_byte_level:
            table = self._visible_bytes if skip_special_tokens else self.token_bytes
            return ByteLevelDetokenizer(table)
        special = self.bytes.special_ids
        joined = not (skip_special_tokens or spaces_between_special_tokens)
        return WindowedDetokenizer(
            self.tokenizer,
            prompt[-_CONTEXT_TOKENS:],
            skipped_ids=special if skip_special_tokens else frozenset(),
            joined_ids=special if joined else frozenset(),
        )


class ByteLevelDetokenizer:
    """Concatenates the bytes of tokens and releases whole UTF-8 characters."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._table[token_id])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)

    def copy(self) -> Self:
        clone = type(self)(self._table)
        clone._utf8.setstate(self._utf8.getstate())
        return clone


class WindowedDetokenizer:
    """Decodes a window of recent tokens with and without the newest and takes the difference.

    The window exists because decoders such as SentencePiece's drop a space before their first
    token. A token of ``skipped_ids`` has no text, and one of ``joined_ids`` follows another one
    without a space.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int],
        skipped_ids: frozenset[int] = frozenset(),
        joined_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = skipped_ids
        self._joined_ids = joined_ids
        self._window = [token_id for token_id in context if token_id not in skipped_ids]
        self._num_read = len(self._window)

    def push(self, token_id: int) -> str:
        if token_id in self._skipped_ids or self._tokenizer.id_to_token(token_id) is None:
            return ""
        joined = token_id in self._joined_ids and self._joined_ids.issuperset(self._window[-1:])
        self._window.append(token_id)
        text = self._unread()
        if text and not text.endswith(_REPLACEMENT):
            self._advance()
            return text.removeprefix(" ") if joined else text
        if len(self._window) - self._num_read <= _MOST_BYTES:
            return ""
        # These bytes will never be a character. The window keeps the first of them: decoders with
        # byte fallback replace all bytes up to the next other token.
        del self._window[_MOST_KEPT:]
        self._num_read = len(self._window)
        return text

    def flush(self) -> str:
        text = self._unread()
        self._advance()
        return text

    def copy(self) -> Self:
        clone = type(self)(self._tokenizer, self._window, self._skipped_ids, self._joined_ids)
        clone._num_read = self._num_read
        return clone

    def _unread(self) -> str:
        read = self._decode(self._window[: self._num_read])
        text = self._decode(self._window)
        if read.endswith(_REPLACEMENT) and not text.startswith(read):
            read = self._without_its_end(text) or read.rstrip(_REPLACEMENT)
        return text[len(read) :]

    def _without_its_end(self, text: str) -> str:
        """The text before a character in whose middle the prompt ends. All bytes beside it are
        replaced too as long as it is incomplete."""
        for missing in range(1, _MOST_BYTES):
            whole = self._decode(self._window[: max(0, self._num_read - missing)])
            if not whole.endswith(_REPLACEMENT) and text.startswith(whole):
                return whole
        return ""

    def _advance(self) -> None:
        del self._window[: self._num_read]
        self._num_read = len(self._window)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text
