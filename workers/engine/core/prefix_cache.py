"""What the scheduler asks of a cache of prefixes. No torch."""

from collections.abc import Iterable
from typing import Protocol

from workers.engine.core.sequence import Piece, Sequence
from workers.engine.core.step import StateSave


class PrefixCache(Protocol):
    """Finds blocks by the tokens they hold, so that a common prefix is computed once."""

    queries: int
    """The number of tokens looked up."""
    hits: int
    """The number of tokens found."""

    def hashes(self, sequence: Sequence) -> list[bytes]:
        """Return one hash for each full block of the sequence's tokens, in order."""

    def usable_hashes(self, sequence: Sequence) -> list[bytes]:
        """Return the hashes of the blocks that a sequence may take from the cache."""

    def match(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks at the beginning of a sequence, as far as it may use them."""

    def begin(self, sequence: Sequence, num_matched: int) -> None:
        """Note that a sequence starts with ``num_matched`` of these blocks."""

    def plan(self, pieces: Iterable[Piece]) -> list[StateSave]:
        """Return the states to save while a step computes these pieces."""

    def num_shareable(self, owner: Sequence, num_tokens: int) -> int:
        """Return how many of the first ``num_tokens`` tokens, which ``owner`` is computing,
        another sequence will find here."""

    def store(self, sequence: Sequence, num_computed: int) -> None:
        """Add the full blocks of a sequence's first ``num_computed`` tokens."""

    def abandon(self, sequence: Sequence) -> None:
        """Note that what a sequence has computed since :meth:`store` is lost."""

    def discard(self, blocks: list[int]) -> None:
        """Remove blocks from the cache. Sequences that hold them keep them."""
