"""Allocates the blocks of the KV cache, counts their holders, and gives them to sequences. No
torch."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows

from workers.engine.core.plan import NULL_BLOCK
from workers.engine.core.prefix_cache import PrefixCache
from workers.engine.core.sequence import Sequence


class BlockPool:
    """Allocates blocks 1 to ``num_blocks - 1`` with reference counts.

    A block without holders is free, or idle if it is kept. An idle block keeps its contents until
    a sequence shares it again or no free block is left. Free blocks are reused most recently freed
    first, while they are warm; idle ones least recently used first.

    Not thread-safe: the engine's thread owns it. Each allocation and each share is freed once.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self.references = [0] * num_blocks
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.tainted: set[int] = set()
        self.num_blocks = num_blocks - 1
        self.on_evict: Callable[[int], None] = lambda block: None
        """Called with each kept block that is evicted."""

    @property
    def num_free(self) -> int:
        """Blocks that :meth:`allocate` can return, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - self.num_free

    @property
    def num_idle(self) -> int:
        """Kept blocks without a holder."""
        return len(self._idle)

    def allocate(self, count: int) -> list[int] | None:
        """Return ``count`` blocks, or None without any change if fewer are available."""
        if count > self.num_free:
            return None
        while count > len(self._free):
            self._evict()
        keep = len(self._free) - count
        blocks = self._free[keep:][::-1]
        del self._free[keep:]
        for block in blocks:
            self.references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to blocks that have one or that are kept."""
        for block in blocks:
            if self.references[block] == 0:
                assert block in self._kept, f"block {block} is free"
                del self._idle[block]
            self.references[block] += 1

    def free(self, blocks: Rows[int]) -> None:
        """Remove a holder from blocks. A sequence's last block becomes the first to evict."""
        for block in reversed(blocks):
            assert self.references[block] > 0, f"block {block} is not held"
            self.references[block] -= 1
            if self.references[block] == 0:
                if block in self._kept:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """Keep a held block's contents beyond its last holder."""
        assert self.references[block] > 0, f"block {block} is not held"
        self._kept.add(block)

    def unkeep(self, block: int) -> None:
        """Undo :meth:`keep`. A block without holders becomes free at once."""
        self._kept.discard(block)
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)

    def taint(self, blocks: Iterable[int]) -> None:
        """Mark held blocks whose contents must not reach another holder."""
        self.tainted.update(blocks)

    def take_tainted(self, blocks: Iterable[int]) -> list[int]:
        """Return the tainted ones among newly allocated blocks, which must be scrubbed, and
        unmark them."""
        if not self.tainted:
            return []
        tainted = [block for block in blocks if block in self.tainted]
        self.tainted.difference_update(tainted)
        return tainted

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        self._kept.remove(block)
        self._free.append(block)
        self.on_evict(block)


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
