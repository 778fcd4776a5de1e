"""The bytes that each token of a vocabulary contributes to a text.

Byte-level vocabularies (GPT-2, Llama 3, Qwen) write every byte as one printable character.
Vocabularies with byte fallback (SentencePiece, as in Llama 2) write a space as a mark and a byte
that no token covers as `<0xE2>`.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Reads the tokens of one tokenizer, by id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        steps = list(_decoding_steps(tokenizer))
        kinds = [step["type"] for step in steps]
        self.is_byte_level = kinds == ["ByteLevel"]
        """Whether the bytes of tokens, joined, are the bytes of their text."""
        self.is_exact = not {"ByteLevel", "ByteFallback", "Metaspace"}.isdisjoint(kinds)
        """Whether a token contributes the same bytes wherever it stands in a text."""
        self._byte_of = byte_of_character() if "ByteLevel" in kinds else None
        self._has_byte_tokens = "ByteFallback" in kinds
        self._space = next(filter(None, map(_space_mark, steps)), "")

    @cached_property
    def _added(self) -> dict[int, str]:
        added = self.tokenizer.get_added_tokens_decoder()
        return {id: token.content for id, token in added.items()}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that stand for no text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    def of(self, token_id: int) -> bytes:
        """The bytes of one token; empty for an id without a token."""
        return self._read(token_id, self.tokenizer.id_to_token(token_id) or "")

    def table(self, size: int) -> list[bytes]:
        """The bytes of the tokens 0 to `size` - 1; ids without a token have none."""
        table = [b""] * size
        for token, token_id in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if token_id < size:
                table[token_id] = self._read(token_id, token)
        return table

    def _read(self, token_id: int, token: str) -> bytes:
        if self._byte_of is not None:
            # A token outside the alphabet was added to the vocabulary and stands for itself.
            raw = all(character in self._byte_of for character in token)
            return bytes(map(self._byte_of.__getitem__, token)) if raw else token.encode()
        if token_id in self._added:
            return token.encode()
        if self._has_byte_tokens and (found := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(found[1])
        return (token.replace(self._space, " ") if self._space else token).encode()


def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: a byte that is printable in Latin-1 is that character; the others follow
    from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    shown = {chr(byte): byte for byte in visible}
    return shown | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


def num_ids(tokenizer: Tokenizer) -> int:
    """One more than the largest token id. Ids may have gaps, so there may be fewer tokens."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _decoding_steps(tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    decoder = tokenizer.decoder
    # The state of pickling is the decoder's JSON; writing the whole tokenizer takes 100 ms.
    waiting = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting[:0] = step["decoders"]
        else:
            yield step


def _space_mark(step: dict[str, Any]) -> str:
    """The character that a decoding step replaces by a space; empty for another step."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["content"] == " ":
        return str(step["pattern"].get("String", ""))
    return ""
