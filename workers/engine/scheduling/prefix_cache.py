"""Which blocks hold the keys and values of which tokens, so that a common prefix is computed once.

Blocks are found by a hash of all tokens up to their end: that of a block is taken over the hash
of the one before it and its own tokens, and the first follows upon a salt. No torch.
"""

import hashlib
from array import array

from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.sequence import Sequence


def chain_salt(organization: str, cache_salt: str = "", adapter: str | None = None) -> bytes:
    """What the hashes of a request begin with: requests that differ in any of this never share a
    block. An adapter changes what is in it; and nobody can learn from a fast answer what a
    stranger has sent."""
    return hashlib.sha256(repr((organization, cache_salt, adapter)).encode()).digest()


class PrefixCache:
    """Full blocks by the SHA-256 of their chain. Only blocks that the pool holds or keeps are here.

    ``queries`` and ``hits`` count the tokens that were looked up and those that were found.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self.queries = 0
        self.hits = 0
        pool.on_evict = self._forget

    def hashes(self, sequence: Sequence) -> list[bytes]:
        """One hash for each full block of the sequence's tokens, in order."""
        size, hashes = self._block_size, sequence.block_hashes
        for start in range(len(hashes) * size, sequence.num_tokens - size + 1, size):
            chain = hashes[-1] if hashes else sequence.cache_salt
            tokens = array("q", sequence.token_ids[start : start + size])
            hashes.append(hashlib.sha256(chain + tokens.tobytes()).digest())
        return hashes

    def usable_hashes(self, sequence: Sequence) -> list[bytes]:
        """The hashes of the blocks that a sequence could do without computing. Its last token is
        never among them: it must be computed for its logits."""
        limit = sequence.num_tokens - 1
        if sequence.cache_reuse_limit is not None:
            limit = min(limit, sequence.cache_reuse_limit)
        return self.hashes(sequence)[: limit // self._block_size]

    def match(self, sequence: Sequence) -> list[int]:
        """The cached blocks that a sequence begins with, of those that it can use."""
        blocks: list[int] = []
        for digest in self.usable_hashes(sequence):
            if (block := self._blocks.get(digest)) is None:
                break
            blocks.append(block)
        return blocks

    def store(self, sequence: Sequence) -> None:
        """Remember the sequence's computed full blocks. Of equal blocks the first one stays."""
        hashes = self.hashes(sequence)
        num_full = sequence.num_computed // self._block_size
        for index in range(sequence.num_stored, num_full):
            digest, block = hashes[index], sequence.block_ids[index]
            if digest not in self._blocks:
                self._blocks[digest] = block
                self._hashes[block] = digest
                self._pool.keep(block)
        sequence.num_stored = num_full

    def discard(self, blocks: list[int]) -> None:
        """Let nobody find these blocks any more; those who hold them keep them."""
        for block in blocks:
            if block in self._hashes:
                self._forget(block)
                self._pool.unkeep(block)

    def _forget(self, block: int) -> None:
        del self._blocks[self._hashes.pop(block)]
