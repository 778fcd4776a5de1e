"""Finds blocks by the tokens they hold, so that a common prefix is computed once. No torch.

A block's key is a hash of all tokens up to its end: SHA-256 over the previous block's hash and the
block's own tokens. The first block's hash begins with a salt.
"""

import hashlib
from array import array
from collections.abc import Iterable

from workers.engine.core.sequence import Piece, Sequence
from workers.engine.core.step import StateSave
from workers.engine.scheduling.block_pool import BlockPool


def chain_salt(
    organization: str,
    cache_salt: str = "",
    adapter: str | None = None,
    is_recorded: bool = False,
) -> bytes:
    """Return the salt of a request's hashes. Requests with different salts never share a block.

    An adapter changes a block's contents. A request that is recorded runs through the model's
    modules, which round differently from the C forward. Organization and ``cache_salt`` keep a
    client from inferring another client's prompts from its own response times.
    """
    salt = repr((organization, cache_salt, adapter, is_recorded))
    return hashlib.sha256(salt.encode()).digest()


class BlockPrefixCache:
    """Maps chain hashes to full blocks, all of which the pool holds or keeps."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self.queries = 0
        """The number of tokens looked up."""
        self.hits = 0
        """The number of tokens found."""
        pool.on_evict = self._forget

    def hashes(self, sequence: Sequence) -> list[bytes]:
        """Return one hash for each full block of the sequence's tokens, in order."""
        size, hashes, prompt = self._block_size, sequence.prefix.hashes, sequence.prefix.prompt
        if not hashes:
            hashes += prompt.hashes
        for start in range(len(hashes) * size, sequence.num_tokens - size + 1, size):
            chain = hashes[-1] if hashes else sequence.prefix.salt
            tokens = array("q", sequence.token_ids[start : start + size])
            hashes.append(hashlib.sha256(chain + tokens.tobytes()).digest())
        if not prompt.hashes:
            prompt.hashes += hashes[: prompt.num_tokens // size]
        return hashes

    def usable_hashes(self, sequence: Sequence) -> list[bytes]:
        """Return the hashes of the blocks that a sequence may take from the cache. They never
        reach its last token, which must be computed for its logits."""
        limit = sequence.num_tokens - 1
        if sequence.prefix.reuse_limit is not None:
            limit = min(limit, sequence.prefix.reuse_limit)
        return self.hashes(sequence)[: limit // self._block_size]

    def match(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks at the beginning of a sequence, as far as it may use them."""
        blocks: list[int] = []
        for digest in self.usable_hashes(sequence):
            if (block := self._blocks.get(digest)) is None:
                break
            blocks.append(block)
        return blocks

    def begin(self, sequence: Sequence, num_matched: int) -> None:
        """Note that a sequence starts with ``num_matched`` of these blocks."""

    def plan(self, pieces: Iterable[Piece]) -> list[StateSave]:
        """Return the states to save while a step computes these pieces: blocks are enough."""
        return []

    def num_shareable(self, owner: Sequence, num_tokens: int) -> int:
        """Return how many of the first ``num_tokens`` tokens, which ``owner`` is computing,
        another sequence will find here."""
        return num_tokens

    def abandon(self, sequence: Sequence) -> None:
        """Note that what a sequence has computed since :meth:`store` is lost."""

    def store(self, sequence: Sequence, num_computed: int) -> None:
        """Add the full blocks of a sequence's first ``num_computed`` tokens. Of equal blocks the
        first one is kept."""
        hashes = self.hashes(sequence)
        num_full = num_computed // self._block_size
        for index in range(sequence.prefix.num_stored, num_full):
            digest, block = hashes[index], sequence.block_ids[index]
            if digest not in self._blocks:
                self._blocks[digest] = block
                self._hashes[block] = digest
                self._pool.keep(block)
        sequence.prefix.num_stored = num_full

    def discard(self, blocks: list[int]) -> None:
        """Remove blocks from the cache. Sequences that hold them keep them."""
        for block in blocks:
            if block in self._hashes:
                self._forget(block)
                self._pool.unkeep(block)

    def _forget(self, block: int) -> None:
        del self._blocks[self._hashes.pop(block)]
