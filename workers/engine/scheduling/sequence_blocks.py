"""The blocks that sequences hold, get and share. No torch."""

from workers.engine.core.prefix_cache import PrefixCache
from workers.engine.core.sequence import Sequence
from workers.engine.scheduling.block_pool import BlockPool


class SequenceBlocks:
    """Counts, allocates and frees the blocks of sequences."""

    def __init__(self, pool: BlockPool, cache: PrefixCache | None, block_size: int) -> None:
        self.pool = pool
        self._cache = cache
        self.block_size = block_size

    def match(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks that a sequence may begin with."""
        return self._cache.match(sequence) if self._cache is not None else []

    def count_cached_tokens(self, sequence: Sequence) -> int:
        return len(self.match(sequence)) * self.block_size

    def count_missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Return how many more blocks ``num_tokens`` tokens need; negative if they need fewer."""
        return -(-num_tokens // self.block_size) - len(sequence.block_ids)

    def count_lacking(self, sequence: Sequence, matched: list[int], reserve: int) -> int:
        """Return how many blocks too few are free to start a sequence with ``matched`` ones and to
        keep a ``reserve``; negative if there are more."""
        self.pool.share(matched)
        needed = self.count_missing(sequence, sequence.num_tokens) - len(matched) + reserve
        lacking = needed - self.pool.num_free
        self.pool.free(matched)
        return lacking

    def start(self, sequence: Sequence, matched: list[int]) -> None:
        """Give a sequence that holds none the blocks for its tokens, ``matched`` ones first."""
        self.pool.share(matched)
        missing = self.count_missing(sequence, sequence.num_tokens) - len(matched)
        blocks = self.pool.allocate(missing)
        assert blocks is not None
        sequence.block_ids = matched + blocks
        sequence.num_computed = len(matched) * self.block_size
        sequence.prefix.num_stored = len(matched)

    def lengthen(self, sequence: Sequence, missing: int) -> list[int] | None:
        """Give a sequence that many more blocks. Return the tainted ones among them, or None if too
        few are free."""
        if (blocks := self.pool.allocate(missing)) is None:
            return None
        sequence.block_ids += blocks
        return self.pool.take_tainted(blocks)

    def taint_uncomputed(self, sequence: Sequence) -> None:
        """Have a sequence's blocks scrubbed, before another one gets them, from the one that holds
        its first uncomputed token."""
        self.pool.taint(sequence.block_ids[sequence.num_computed // self.block_size :])

    def release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
        if self._cache is not None:
            self._cache.abandon(sequence)
