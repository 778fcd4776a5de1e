"""The bytes that each token of a vocabulary contributes to a text.

Byte-level vocabularies (GPT-2, Llama 3, Qwen) write every byte as one printable character.
Vocabularies with byte fallback (SentencePiece, as in Llama 2) write a space as a mark and a byte
that no token covers as `<0xE2>`.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
"""What decoders show for bytes that are no character."""
_Utf8 = codecs.getincrementaldecoder("utf-8")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Reader of the tokens of one tokenizer, by id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        steps = list(_iter_decoding_steps(tokenizer))
        kinds = [step["type"] for step in steps]
        self.is_byte_level = kinds == ["ByteLevel"]
        """Whether the joined bytes of tokens are the bytes of their decoded text."""
        self.is_exact = not {"ByteLevel", "ByteFallback", "Metaspace"}.isdisjoint(kinds)
        """Whether a token contributes the same bytes at every position of a text."""
        self._byte_of = make_byte_table() if "ByteLevel" in kinds else None
        self._has_byte_tokens = "ByteFallback" in kinds
        self._space = next(filter(None, map(_find_space_mark, steps)), "")
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        """The ids of tokens without text."""

    def get(self, token_id: int) -> bytes:
        """Return the bytes of one token; empty for an id without a token."""
        return self._read(self.tokenizer.id_to_token(token_id) or "")

    def find_byte_ids(self) -> frozenset[int]:
        """Return the ids of tokens that stand for a byte that no other token covers."""
        if not self._has_byte_tokens:
            return frozenset()
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        return frozenset(i for token, i in vocabulary.items() if _BYTE_TOKEN.fullmatch(token))

    def make_table(self, size: int) -> list[bytes]:
        """Return the bytes of tokens 0 to `size` - 1; empty for ids without a token."""
        table = [b""] * size
        for token, token_id in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if token_id < size:
                table[token_id] = self._read(token)
        return table

    def _read(self, token: str) -> bytes:
        """Read an added token like any other, as decoders do: Gemma adds runs of word marks."""
        if self._byte_of is not None:
            try:
                return bytes(map(self._byte_of.__getitem__, token))
            except KeyError:  # with other characters, a token was added and is literal text
                return token.encode()
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return (token.replace(self._space, " ") if self._space else token).encode()


def make_byte_table() -> dict[str, int]:
    """Return GPT-2's alphabet: a byte that is printable in Latin-1 maps to that character, any
    other byte to a character from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


def count_ids(tokenizer: Tokenizer) -> int:
    """Return one more than the largest token id. Ids may have gaps, so there may be fewer
    tokens."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _iter_decoding_steps(tokenizer: Tokenizer) -> Iterator[dict[str, object]]:
    decoder = tokenizer.decoder
    # The decoder's pickle state is its JSON; serializing the whole tokenizer takes 100 ms.
    waiting = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting[:0] = step["decoders"]
        else:
            yield step


def _find_space_mark(step: dict[str, Any]) -> str:
    """Return the character that a decoding step replaces with a space; empty for other steps."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["content"] == " ":
        return str(step["pattern"].get("String", ""))
    return ""


def take_unfinished(data: bytes) -> bytes:
    """Return the bytes at the end of ``data`` that begin a character and do not complete it."""
    if is_text(data):  # the common case, in a tenth of a decoder's time
        return b""
    utf8 = _Utf8(errors="replace")
    utf8.decode(data)
    return utf8.getstate()[0]


def is_text(data: bytes) -> bool:
    """Return whether the bytes are whole UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
