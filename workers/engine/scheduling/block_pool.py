"""Physical KV cache blocks: which are free, which are held how often, which are kept. No torch."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

NULL_BLOCK = 0
"""Never allocated: block tables are padded with it, so its contents stay zero."""


class BlockPool:
    """Hands out blocks 1 to ``num_blocks - 1`` and counts who holds them.

    A block that its last holder lets go of is free, unless it is kept: then it waits, contents
    and all, until somebody shares it again or nothing else is left to allocate. Free blocks go
    out most recently freed first, while warm; kept ones least recently used first.

    Not thread-safe: the engine thread owns it. Whoever allocates or shares frees exactly once.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._references = [0] * num_blocks
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._tainted: set[int] = set()
        self.num_blocks = num_blocks - 1
        self.on_evict: Callable[[int], None] = lambda block: None
        """Told of each kept block whose contents are given up."""

    @property
    def num_free(self) -> int:
        """Blocks that :meth:`allocate` can hand out, those that are only kept included."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds and that are kept."""
        return len(self._idle)

    def allocate(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, or None and no change when there are not that many."""
        if count > self.num_free:
            return None
        while count > len(self._free):
            self._evict()
        keep = len(self._free) - count
        blocks = self._free[keep:][::-1]
        del self._free[keep:]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that others hold, or that are kept."""
        for block in blocks:
            if self._references[block] == 0:
                assert block in self._kept, f"block {block} is free"
                del self._idle[block]
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Let go of blocks; the last one of a sequence is the first to be given up."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is not held"
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._kept:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """Do not forget a held block's contents when its last holder lets go."""
        assert self._references[block] > 0, f"block {block} is not held"
        self._kept.add(block)

    def unkeep(self, block: int) -> None:
        """Undo :meth:`keep`; a block that nobody holds is free at once."""
        self._kept.discard(block)
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)

    def taint(self, blocks: Iterable[int]) -> None:
        """Note that the contents of held blocks must not reach another holder."""
        self._tainted.update(blocks)

    def take_tainted(self, blocks: Iterable[int]) -> list[int]:
        """Those of newly allocated blocks that must be scrubbed before use; asks but once."""
        if not self._tainted:
            return []
        tainted = [block for block in blocks if block in self._tainted]
        self._tainted.difference_update(tainted)
        return tainted

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        self._kept.remove(block)
        self._free.append(block)
        self.on_evict(block)
