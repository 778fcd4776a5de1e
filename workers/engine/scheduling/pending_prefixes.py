"""Blocks that a running sequence is computing, and the sequences that wait to share them. No torch.

Sequences with a common prefix often arrive together: choices of one prompt, or requests with one
system prompt. The first one computes it, and the others wait until its blocks are cached.
"""

from workers.engine.core.prefix_cache import PrefixCache
from workers.engine.core.sequence import Sequence


class PendingPrefixes:
    """The prefixes that running sequences compute. Without a cache, no sequence waits."""

    def __init__(self, cache: PrefixCache | None, block_size: int) -> None:
        self._cache = cache
        self._block_size = block_size
        self._owners: dict[bytes, Sequence] = {}  # by block hash: who computes it
        self._waiting: dict[Sequence, list[Sequence]] = {}  # for each owner
        self._awaited: dict[Sequence, Sequence] = {}  # by waiting sequence: the owner

    def __len__(self) -> int:
        """Return the number of sequences that wait."""
        return len(self._awaited)

    def begin(self, sequence: Sequence, num_matched: int) -> None:
        """Let others wait for the blocks that a sequence computes after ``num_matched`` cached
        ones, until :meth:`end`."""
        if self._cache is None:
            return
        self._waiting[sequence] = []
        for digest in self._cache.hashes(sequence)[num_matched:]:
            self._owners.setdefault(digest, sequence)

    def end(self, owner: Sequence) -> list[Sequence]:
        """Return the sequences that wait for an owner's blocks: these are cached now or never."""
        if owner not in self._waiting:
            return []
        for digest in owner.prefix.hashes:
            if self._owners.get(digest) is owner:
                del self._owners[digest]
        waiting = self._waiting.pop(owner)
        for sequence in waiting:
            del self._awaited[sequence]
        return waiting

    def wait(self, sequence: Sequence, num_matched: int) -> bool:
        """Have a sequence wait, if blocks after its ``num_matched`` cached ones are worth it."""
        if (owner := self._owner_for(sequence, num_matched)) is None:
            return False
        self._waiting[owner].append(sequence)
        self._awaited[sequence] = owner
        return True

    def leave(self, sequence: Sequence) -> bool:
        """Stop a sequence's wait. Return False if it does not wait."""
        if (owner := self._awaited.pop(sequence, None)) is None:
            return False
        self._waiting[owner].remove(sequence)
        return True

    def _owner_for(self, sequence: Sequence, num_matched: int) -> Sequence | None:
        """Return the sequence that computes blocks worth waiting for, if any: at least half of what
        either sequence still has to compute."""
        if self._cache is None or not self._waiting:
            return None
        usable = self._cache.usable_hashes(sequence)[num_matched:]
        owner = self._owners.get(usable[0]) if usable else None
        if owner is None or owner.origin.priority < sequence.origin.priority:
            return None
        shared = 0
        for digest in usable:
            if self._owners.get(digest) is not owner:
                break
            shared += self._block_size
        start = num_matched * self._block_size
        shared = self._cache.num_shareable(owner, start + shared) - start
        to_do = sequence.num_tokens - start
        return owner if 2 * shared >= max(to_do, owner.num_uncomputed) else None
