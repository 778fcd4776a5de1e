"""A model's tokens: for llguidance, as single bytes, and by text and id."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from completions.contract import llguidance_tokenizer
from completions.contract.token_bytes import TokenBytes, count_ids

MAX_TOKEN_BYTES = 256
"""Longer tokens are not searched for in a text."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The file of a model's tokens. A key of caches, as the file does not change."""

    tokenizer_file: str
    size: int
    """Rows of the model's output layer, possibly more than there are tokens."""
    eos_token_ids: tuple[int, ...]


_LOADING = Lock()
"""Keeps threads from building the same tokenizer at the same time."""


def load(source: TokenSource | None) -> LLTokenizer:
    """Return llguidance's tokenizer, built once per process in about 0.3 s; without a model, its
    tokens are the 256 bytes."""
    with _LOADING:
        return _load(source)[0]


def load_special_ids(source: TokenSource | None) -> Mapping[str, int]:
    """Return the special tokens by their text; none without a model."""
    with _LOADING:
        return _load(source)[1]


@lru_cache
def _load(source: TokenSource | None) -> tuple[LLTokenizer, Mapping[str, int]]:
    if source is None:
        return LLTokenizer("byte"), {}
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    tokens = read.make_table(_count_ids(source, read))
    special = {str(read.tokenizer.id_to_token(id)): id for id in read.special_ids}
    return llguidance_tokenizer.build(read, tokens, source.eos_token_ids), special


def _count_ids(source: TokenSource, read: TokenBytes) -> int:
    return max(source.size, count_ids(read.tokenizer))


@dataclass(frozen=True, slots=True)
class ByteView:
    """The model's tokens followed by one token for each byte, so that any text can be matched.

    The model's own tokens match only where a grammar asks for tokens by id.
    """

    tokenizer: LLTokenizer
    first_byte: int
    """The id of the token for the byte 0."""
    ids: Mapping[bytes, int]
    """The model's tokens by their bytes."""

    def iter_tokens(self, text: bytes, position: int) -> Iterator[tuple[int, int]]:
        """Yield id and length of each of the model's tokens that stands in the text at a position,
        longest first."""
        for length in range(min(MAX_TOKEN_BYTES, len(text) - position), 0, -1):
            if (id := self.ids.get(text[position : position + length])) is not None:
                yield id, length


@lru_cache
def load_byte_view(source: TokenSource | None) -> ByteView:
    if source is None:
        return ByteView(load(None), 0, {})
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    size = _count_ids(source, read)
    tokens = read.make_table(size)
    ids = {token: id for id, token in enumerate(tokens) if token}
    tokens += (bytes((byte,)) for byte in range(256))
    view = llguidance_tokenizer.build(read, tokens, source.eos_token_ids, range(size))
    return ByteView(view, size, ids)


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens that a model has, without rows of its output layer that have no token."""

    ids: Mapping[str, int]
    existing: frozenset[int]
    eos_token_ids: frozenset[int]
    special_ids: frozenset[int] = frozenset()
    """The tokens without text."""
    lead_bytes: Sequence[int] = ()
    """By id, a 256-bit set of the first byte of the token's text; 0 for a token without text."""

    def list_others(self, excluded: Iterable[int]) -> list[tuple[int, int]]:
        """Return the tokens that neither end the text nor are excluded, as ranges with both
        ends."""
        return make_ranges(self.existing - self.eos_token_ids - frozenset(excluded))

    def find_leads(self, ids: Iterable[tuple[int, int]]) -> int:
        """Return the first bytes of the texts of the tokens in some ranges, as a set of 256
        bits."""
        bits = 0
        for low, high in ids:
            for each in self.lead_bytes[low : high + 1]:
                bits |= each
        return bits

    def is_any_text(self, ids: Iterable[tuple[int, int]]) -> bool:
        """Return whether the ranges include every token that has a text."""
        members = frozenset(id for low, high in ids for id in range(low, high + 1))
        return self.existing - self.special_ids - self.eos_token_ids <= members


def make_ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return token ids as sorted ranges with both ends."""
    result: list[tuple[int, int]] = []
    for id in sorted(ids):
        if result and result[-1][1] == id - 1:
            result[-1] = result[-1][0], id
        else:
            result.append((id, id))
    return result


IdRanges = tuple[tuple[int, int], ...]


def split_disjoint(sets: Iterable[IdRanges]) -> dict[IdRanges, list[IdRanges]]:
    """Return, for each set of ids, the sets whose union it is; any two sets of the result are equal
    or disjoint.

    Where several sets contain a token, llguidance follows only one of them.
    """
    distinct = list(dict.fromkeys(sets))
    edges: dict[int, list[tuple[int, bool]]] = {}
    for index, ids in enumerate(distinct):
        for low, high in ids:
            edges.setdefault(low, []).append((index, True))
            edges.setdefault(high + 1, []).append((index, False))
    held: set[int] = set()
    alike: dict[frozenset[int], list[tuple[int, int]]] = {}
    for edge, following in itertools.pairwise(sorted(edges)):
        for index, begins in edges[edge]:
            (held.add if begins else held.discard)(index)
        if held:
            alike.setdefault(frozenset(held), []).append((edge, following - 1))
    return {
        ids: [tuple(each) for held_by, each in alike.items() if index in held_by]
        for index, ids in enumerate(distinct)
    }


def write_ids(ids: Iterable[tuple[int, int]]) -> str:
    """Return one token of some ranges, as llguidance's Lark writes it: <[1,5-9]>."""
    spans = (str(low) if low == high else f"{low}-{high}" for low, high in ids)
    return f"<[{','.join(spans)}]>"


@lru_cache
def load_table(source: TokenSource) -> TokenTable:
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    ids = read.tokenizer.get_vocab(with_added_tokens=True)
    lead_bytes = [
        1 << text[0] if text and id not in read.special_ids else 0
        for id, text in enumerate(read.make_table(_count_ids(source, read)))
    ]
    return TokenTable(
        ids, frozenset(ids.values()), frozenset(source.eos_token_ids), read.special_ids, lead_bytes
    )
