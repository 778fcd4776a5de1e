"""Turns token ids into text piece by piece, without splitting a character. No torch.

Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM) are decoded from a table of each token's
bytes; any other decoder through the tokenizer itself, over a window of recent tokens.
"""

import codecs
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol, Self

from tokenizers import Tokenizer

from completions.contract.token_bytes import REPLACEMENT, TokenBytes, count_ids, take_unfinished
from workers.engine.text.windowed_detokenizers import (
    CONTEXT_TOKENS,
    ByteFallbackDetokenizer,
    WindowedDetokenizer,
)

_MOST_UNFINISHED = 3
"""Bytes, and so tokens, of a character that is not whole."""


class Detokenizer(Protocol):
    """The text of one choice.

    The pieces together equal what the output adds to the decoding of the prompt; a character that
    begins in the prompt is shown whole, and one that stays incomplete becomes U+FFFD. Byte fallback
    is the exception: there, a later token can turn earlier bytes into U+FFFD, but characters that
    were already returned stay as they are.
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
        self.size = max(size, count_ids(tokenizer))
        """The bound of all ids; an id below it may stand for no token."""
        self.bytes = TokenBytes(tokenizer)
        self.token_bytes = self.bytes.make_table(self.size)
        """The bytes that each id contributes to a text."""
        special = self.bytes.special_ids
        self._visible_bytes = [
            b"" if i in special else text for i, text in enumerate(self.token_bytes)
        ]
        self._byte_ids = self.bytes.find_byte_ids()

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
        table = self._visible_bytes if skip_special_tokens else self.token_bytes
        shown = (token_id for token_id in reversed(prompt) if table[token_id])
        if self.bytes.is_byte_level:
            return ByteLevelDetokenizer(table, _last(_MOST_UNFINISHED, shown))
        joined = not (skip_special_tokens or spaces_between_special_tokens)
        window = WindowedDetokenizer(
            self.tokenizer, table, self.bytes.special_ids if joined else frozenset()
        )
        context = _last(CONTEXT_TOKENS + _MOST_UNFINISHED, shown)
        if not self._byte_ids:
            window.restart(context, take_unfinished(b"".join(table[i] for i in context)))
            return window
        by_bytes = ByteFallbackDetokenizer(window, self._byte_ids)
        by_bytes.begin(context)
        return by_bytes


class ByteLevelDetokenizer:
    """Concatenates the bytes of tokens and releases whole UTF-8 characters.

    ``context``: the last tokens of the prompt, which may end within a character.
    """

    def __init__(self, table: Sequence[bytes], context: Iterable[int] = ()) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._utf8.decode(b"".join(table[token_id] for token_id in context))
        self._continues = bool(self._utf8.getstate()[0])
        """Whether the first character begins in the prompt."""

    def push(self, token_id: int) -> str:
        text = self._utf8.decode(self._table[token_id])
        return self._first(text) if self._continues else text

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        return self._first(text) if self._continues else text

    def copy(self) -> Self:
        clone = type(self)(self._table)
        clone._utf8.setstate(self._utf8.getstate())
        clone._continues = self._continues
        return clone

    def _first(self, text: str) -> str:
        """Return the first text. If the prompt's bytes make no character, the prompt's text
        replaces them already."""
        self._continues = not text
        return text.removeprefix(REPLACEMENT)


def _last(count: int, reversed_ids: Iterable[int]) -> list[int]:
    return list(islice(reversed_ids, count))[::-1]
