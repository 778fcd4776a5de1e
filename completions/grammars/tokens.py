"""A model's tokens: as llguidance reads them, as single bytes, and by text and id."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from completions.contract import llguidance_tokenizer
from completions.contract.token_bytes import TokenBytes, num_ids

MAX_TOKEN_BYTES = 256
"""Longer tokens are not looked for in a text."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where a model's tokens are read from. A key of caches: the files do not change."""

    tokenizer_file: str
    size: int
    """Rows of the model's output layer, which may be more than there are tokens."""
    eos_token_ids: tuple[int, ...]


_LOADING = Lock()
"""Threads that ask at the same time would otherwise build the same tokenizer each."""


def load(source: TokenSource | None) -> LLTokenizer:
    """llguidance's tokenizer, built once per process in some 0.3 s; without a model, its tokens
    are the 256 bytes."""
    with _LOADING:
        return _load(source)[0]


def special_ids(source: TokenSource | None) -> Mapping[str, int]:
    """The special tokens by their text; none without a model."""
    with _LOADING:
        return _load(source)[1]


@lru_cache
def _load(source: TokenSource | None) -> tuple[LLTokenizer, Mapping[str, int]]:
    if source is None:
        return LLTokenizer("byte"), {}
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    tokens = read.table(_size(source, read))
    special = {str(read.tokenizer.id_to_token(id)): id for id in read.special_ids}
    return llguidance_tokenizer.build(read, tokens, source.eos_token_ids), special


def _size(source: TokenSource, read: TokenBytes) -> int:
    return max(source.size, num_ids(read.tokenizer))


@dataclass(frozen=True, slots=True)
class ByteView:
    """The model's tokens followed by one token for each byte, so that any text can be tried.

    The model's own tokens match only where a grammar asks for tokens by id.
    """

    tokenizer: LLTokenizer
    first_byte: int
    """The id of the token for the byte 0."""
    ids: Mapping[bytes, int]
    """The model's tokens by their bytes."""

    def tokens_at(self, text: bytes, position: int) -> Iterator[tuple[int, int]]:
        """Id and length of each of the model's tokens that stands in the text at a position,
        longest first."""
        for length in range(min(MAX_TOKEN_BYTES, len(text) - position), 0, -1):
            if (id := self.ids.get(text[position : position + length])) is not None:
                yield id, length


@lru_cache
def load_byte_view(source: TokenSource | None) -> ByteView:
    if source is None:
        return ByteView(load(None), 0, {})
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    size = _size(source, read)
    tokens = read.table(size)
    ids = {token: id for id, token in enumerate(tokens) if token}
    tokens += (bytes((byte,)) for byte in range(256))
    view = llguidance_tokenizer.build(read, tokens, source.eos_token_ids, range(size))
    return ByteView(view, size, ids)


class TokenTable:
    """The tokens that a model has. Rows of its output layer without a token are none."""

    def __init__(self, ids: Mapping[str, int], eos_token_ids: Iterable[int]) -> None:
        self._ids = ids
        self._eos = frozenset(eos_token_ids)
        self._existing = frozenset(ids.values())

    def id_of(self, text: str) -> int | None:
        return self._ids.get(text)

    def exists(self, id: int) -> bool:
        return id in self._existing

    def all_but(self, excluded: Iterable[int]) -> list[tuple[int, int]]:
        """The tokens that neither end the text nor are excluded, as ranges with both ends."""
        ranges: list[tuple[int, int]] = []
        for id in sorted(self._existing - self._eos - frozenset(excluded)):
            if ranges and ranges[-1][1] == id - 1:
                ranges[-1] = ranges[-1][0], id
            else:
                ranges.append((id, id))
        return ranges


@lru_cache
def load_table(source: TokenSource) -> TokenTable:
    tokenizer = Tokenizer.from_file(source.tokenizer_file)
    return TokenTable(tokenizer.get_vocab(with_added_tokens=True), source.eos_token_ids)
