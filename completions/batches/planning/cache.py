"""Predicts how many prompt tokens a worker's KV cache spares, for lines in a given order."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from django.conf import settings
from redis.exceptions import RedisError

from completions.batches.planning.prefixes import BLOCK, WIDTH
from completions.jobs.sharding.shards import Layout
from completions.jobs.workers import WorkerRecord, list_all_workers

LOOK_AHEAD = 8
"""How many of the waiting lines the engine compares, to prefer those with a cached prefix."""
MAX_OVERTAKEN = 16
"""How often others may go before the line whose turn it is."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a worker reports about its KV cache."""

    blocks: int
    slots: int
    """Sequences that run at once."""
    block_size: int = BLOCK
    """Tokens."""


def find_smallest_cache(workers: Iterable[WorkerRecord], model: str) -> CacheSize | None:
    """Return the smallest cache of the model's workers; None until one of them reports its size."""
    sizes = [
        CacheSize(facts["kv_blocks_total"], facts["slots"], facts.get("block_size") or BLOCK)
        for facts in (worker.facts for worker in workers if worker.model == model)
        if facts.get("kv_blocks_total") and facts.get("slots")
    ]
    return min(sizes, key=lambda size: size.blocks * size.block_size, default=None)


def read_cache_size(model: str) -> CacheSize | None:
    """Read the smallest cache of a model's workers from this installation's Redis; None if it
    cannot be reached."""
    try:
        with Layout.read(settings).open() as shards:
            return find_smallest_cache(list_all_workers(shards), model)
    except (RedisError, OSError):
        return None


class CacheModel:
    """A KV cache that shares blocks, and evicts the least recently used ones.

    As many lines run at once as there are slots, and they end in the order in which they began. A
    line waits while the engine computes its prefix for another line, so what an earlier line
    computes counts as cached.
    """

    def __init__(self, size: CacheSize) -> None:
        self._size = size
        self._free = size.blocks
        self._holders: dict[bytes, int] = {}
        """How many lines hold a block, by the block's hash."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._running: deque[tuple[list[bytes], int]] = deque()
        """Per line, the hashes of the blocks that it shares, and its number of other blocks."""

    def run(self, path: bytes, tokens: int) -> int:
        """Run a line of `tokens` tokens in all. Returns how many of them are cached."""
        hashes = [path[at : at + WIDTH] for at in range(0, len(path), WIDTH)]
        cached = self.count_cached_blocks(path)
        blocks = -(-tokens // self._size.block_size)
        while self._running and (
            len(self._running) >= self._size.slots or blocks - cached > self._available
        ):
            self._end()
        # `cached` still holds, since ending lines evicts nothing. Hold its blocks first, so that
        # allocating this line's other blocks does not evict them.
        for digest in hashes[:cached]:
            self._holders[digest] = self._holders.get(digest, 0) + 1
            self._idle.pop(digest, None)
        for digest in hashes[cached:]:
            self._allocate()
            self._holders[digest] = self._holders.get(digest, 0) + 1
        others = max(0, blocks - len(hashes))
        for _ in range(others):
            self._allocate()
        self._running.append((hashes, others))
        return cached * self._size.block_size

    @property
    def _available(self) -> int:
        return self._free + len(self._idle)

    def count_cached_blocks(self, path: bytes) -> int:
        """Count the leading blocks of a path that are in the cache."""
        for at in range(0, len(path), WIDTH):
            digest = path[at : at + WIDTH]
            if digest not in self._holders and digest not in self._idle:
                return at // WIDTH
        return len(path) // WIDTH

    def _allocate(self) -> None:
        if self._free:
            self._free -= 1
        elif self._idle:
            self._idle.popitem(last=False)

    def _end(self) -> None:
        """End the line that has run longest. Its last block is the first one to be evicted."""
        hashes, others = self._running.popleft()
        self._free += others
        for digest in reversed(hashes):
            self._holders[digest] -= 1
            if not self._holders[digest]:
                del self._holders[digest]
                self._idle[digest] = None


def count_cached_tokens(lines: Iterable[tuple[bytes, int]], size: CacheSize) -> int:
    """Count the prompt tokens of these lines that are not computed. A line is its path and its
    number of tokens in all.

    As in the engine, of the next lines the one with the longest cached prefix runs first.
    """
    model, left = CacheModel(size), iter(lines)
    waiting, overtaken, cached = list(islice(left, LOOK_AHEAD)), 0, 0
    while waiting:
        best = 0
        if overtaken < MAX_OVERTAKEN:
            best = max(
                range(len(waiting)), key=lambda at: model.count_cached_blocks(waiting[at][0])
            )
        overtaken = overtaken + 1 if best else 0
        cached += model.run(*waiting.pop(best))
        waiting += islice(left, 1)
    return cached
