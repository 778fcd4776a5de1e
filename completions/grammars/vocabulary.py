"""llguidance's view of a model's tokens, as its workers have it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

BYTES = 256
MAX_TOKEN_BYTES = 256
"""Longer tokens are not looked for in a text to try."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the tokens of a model are read from. A key of caches: the files do not change."""

    tokenizer_file: str
    size: int
    """Rows of the model's output, which may exceed the tokenizer's tokens."""
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecialToken:
    id: int
    text: bytes


class _PlainTextTokenizer:
    """What llguidance reads from a wrapped tokenizer. Text that spells a special token is text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = [token.id for token in _special_tokens(tokenizer)]
        self.eos_token_id = eos_token_id
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode() if isinstance(text, bytes) else text
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


_LOADING = Lock()
"""A cache by itself would let threads that ask at once build the same tokenizer each."""


def load(vocabulary: Vocabulary | None) -> LLTokenizer:
    """Built once per process, in some 0.3 s; without a model, one token per byte."""
    with _LOADING:
        return _load(vocabulary)


@lru_cache
def _load(vocabulary: Vocabulary | None) -> LLTokenizer:
    if vocabulary is None:
        return LLTokenizer("byte")
    tokenizer = _read(vocabulary)
    size = max(vocabulary.size, _count(tokenizer))
    tokens = _tokens(tokenizer, size)
    eos = list(vocabulary.eos_token_ids)
    plain = _PlainTextTokenizer(tokenizer, tokens, eos[0])
    return LLTokenizer(TokenizerWrapper(plain), n_vocab=size, eos_token=eos)


@dataclass(frozen=True, slots=True)
class ByteView:
    """The same tokens, and after them one for each byte, so that any text can be followed.

    The model's own tokens stand only where a grammar asks for tokens, not for text.
    """

    tokenizer: LLTokenizer
    first_byte: int
    ids: Mapping[bytes, int]
    """Of the model's tokens, by their bytes."""

    def tokens_at(self, text: bytes, position: int) -> Iterator[tuple[int, int]]:
        """Id and length of each token that the text may begin with there, longest first."""
        for length in range(min(MAX_TOKEN_BYTES, len(text) - position), 0, -1):
            if (id := self.ids.get(text[position : position + length])) is not None:
                yield id, length


@lru_cache
def load_byte_view(vocabulary: Vocabulary | None) -> ByteView:
    if vocabulary is None:
        return ByteView(load(None), 0, {})
    tokenizer = _read(vocabulary)
    size = max(vocabulary.size, _count(tokenizer))
    tokens = _tokens(tokenizer, size)
    for special in _special_tokens(tokenizer):
        tokens[special.id] = special.text
    ids = {token: id for id, token in enumerate(tokens) if token}
    everything = [*tokens, *(bytes((byte,)) for byte in range(BYTES))]
    wrapped = _PlainTextTokenizer(tokenizer, everything, vocabulary.eos_token_ids[0])
    wrapped.special_token_ids = list(range(size))
    view = LLTokenizer(
        TokenizerWrapper(wrapped), n_vocab=len(everything), eos_token=list(vocabulary.eos_token_ids)
    )
    return ByteView(view, size, ids)


class TokenTable:
    """Which tokens a model has. Rows of its output that are no token's are none of them."""

    def __init__(self, ids: Mapping[str, int], eos_token_ids: Iterable[int]) -> None:
        self._ids = ids
        self._eos = frozenset(eos_token_ids)
        self._existing = frozenset(ids.values())

    def id_of(self, text: str) -> int | None:
        return self._ids.get(text)

    def exists(self, id: int) -> bool:
        return id in self._existing

    def all_but(self, excluded: Iterable[int]) -> list[tuple[int, int]]:
        """All others that do not end the text, as ranges with both ends included."""
        ranges: list[tuple[int, int]] = []
        for id in sorted(self._existing - self._eos - frozenset(excluded)):
            if ranges and ranges[-1][1] == id - 1:
                ranges[-1] = ranges[-1][0], id
            else:
                ranges.append((id, id))
        return ranges


@lru_cache
def load_table(vocabulary: Vocabulary) -> TokenTable:
    tokenizer = _read(vocabulary)
    return TokenTable(tokenizer.get_vocab(with_added_tokens=True), vocabulary.eos_token_ids)


def _read(vocabulary: Vocabulary) -> Tokenizer:
    tokenizer = Tokenizer.from_file(vocabulary.tokenizer_file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer = _without_prefix(tokenizer)
    tokenizer.encode_special_tokens = True
    return tokenizer


def _without_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """One that puts no space in front of a text, which stands behind another."""
    written = json.loads(tokenizer.to_str())
    normalizer = written["normalizer"] or {"type": "Sequence", "normalizers": []}
    steps = normalizer.get("normalizers", [normalizer])
    kept = [step for step in steps if step["type"] != "Prepend"]
    splitter = written["pre_tokenizer"] or {}
    marking = [
        step
        for step in splitter.get("pretokenizers", [splitter])
        if step.get("type") == "Metaspace"
    ]
    if kept == steps and not marking:
        return tokenizer
    written["normalizer"] = {"type": "Sequence", "normalizers": kept}
    for step in marking:
        step["prepend_scheme"] = "never"
    return Tokenizer.from_str(json.dumps(written))


def _count(tokenizer: Tokenizer) -> int:
    count: int = tokenizer.get_vocab_size(with_added_tokens=True)
    return count


def _special_tokens(tokenizer: Tokenizer) -> list[SpecialToken]:
    added = tokenizer.get_added_tokens_decoder()
    return [
        SpecialToken(id, token.content.encode())
        for id, token in sorted(added.items())
        if token.special
    ]


def _tokens(tokenizer: Tokenizer, size: int) -> list[bytes]:
    """The bytes of every token. Rows of the model that are no token's have none."""
    return _byte_level_tokens(tokenizer, size) or _other_tokens(tokenizer, size)


def _other_tokens(tokenizer: Tokenizer, size: int) -> list[bytes]:
    """As llguidance reads them, where words begin with a mark (SentencePiece, as of Llama 2)."""
    reader = LLTokenizer(tokenizer.to_str(), n_vocab=size)
    tokens = [b""] * size
    for id in tokenizer.get_vocab(with_added_tokens=True).values():
        tokens[id] = reader.decode_bytes([id])
    for id, token in tokenizer.get_added_tokens_decoder().items():
        tokens[id] = token.content.encode()
    return tokens


def _byte_level_tokens(tokenizer: Tokenizer, size: int) -> list[bytes] | None:
    """The same where the tokenizer works on bytes (GPT-2, Llama 3, Qwen)."""
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None or decoder["type"] != "ByteLevel":
        return None
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    tokens = [b""] * size
    for token, id in tokenizer.get_vocab(with_added_tokens=True).items():
        # A token outside the byte alphabet is an added one and stands for its own text.
        raw = all(character in byte_of for character in token)
        tokens[id] = bytes(map(byte_of.__getitem__, token)) if raw else token.encode()
    return tokens


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte: itself if visible in Latin-1, else from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(BYTES) if byte not in visible]
    alphabet = {byte: chr(byte) for byte in visible}
    alphabet.update((byte, chr(0x100 + i)) for i, byte in enumerate(hidden))
    return alphabet
