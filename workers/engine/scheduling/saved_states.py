"""Saved recurrent states, so that hybrid and state-space models can share prefixes. No torch.

Blocks hold every token's keys and values, but a recurrent state is that of one position. So states
are saved at some borders of blocks, and a prefix is shared up to the last of them: after a prompt,
every ``INTERVAL`` blocks, where two prompts diverged, and at the newest border of a sequence that
generates. The number of saved states is bounded; a new one replaces the least recently used one.
"""

from collections import OrderedDict
from collections.abc import Iterable

from workers.engine.core.sequence import Piece, Sequence
from workers.engine.core.sequence_parts import PendingState
from workers.engine.core.step import StateSave
from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.prefix_cache import BlockPrefixCache

INTERVAL = 32


class SavedStates:
    """The rows that hold saved states, by the hash of the tokens that led to them."""

    def __init__(self, rows: Iterable[int]) -> None:
        self._free = list(rows)
        self._rows: OrderedDict[bytes, int] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def use(self, digest: bytes) -> int:
        """Return the row of a saved state, which is now the most recently used one."""
        self._rows.move_to_end(digest)
        return self._rows[digest]

    def take(self) -> int | None:
        """Return a row to write to, for :meth:`add` or :meth:`give_back`; None if there is none."""
        if self._free:
            return self._free.pop()
        return self._rows.popitem(last=False)[1] if self._rows else None

    def add(self, digest: bytes, row: int) -> None:
        """Keep the state in ``row``. Of equal states, the first one is kept."""
        if digest in self._rows:
            self._free.append(row)
        else:
            self._rows[digest] = row

    def give_back(self, row: int) -> None:
        self._free.append(row)

    def drop(self, digest: bytes) -> None:
        if (row := self._rows.pop(digest, None)) is not None:
            self._free.append(row)


class StatefulPrefixCache(BlockPrefixCache):
    """A prefix cache for a model with states: a match ends where a state is saved."""

    def __init__(self, pool: BlockPool, block_size: int, rows: Iterable[int]) -> None:
        super().__init__(pool, block_size)
        self.saved = SavedStates(rows)

    def match(self, sequence: Sequence) -> list[int]:
        blocks = super().match(sequence)
        hashes = sequence.prefix.hashes
        while blocks and hashes[len(blocks) - 1] not in self.saved:
            blocks.pop()
        return blocks

    def begin(self, sequence: Sequence, num_matched: int) -> None:
        states = sequence.prefix.states
        states.restored_from = None
        if num_matched:
            states.restored_from = self.saved.use(sequence.prefix.hashes[num_matched - 1])
        if (num_common := len(super().match(sequence))) > num_matched:
            states.borders.add(num_common * self._block_size)

    def plan(self, pieces: Iterable[Piece]) -> list[StateSave]:
        saves = []
        for sequence, first, size in pieces:
            for border, is_passing in self._borders(sequence, first, size):
                is_drafted = border > sequence.num_tokens
                if not is_drafted and self._hash_before(sequence, border) in self.saved:
                    continue
                if (row := self.saved.take()) is None:
                    continue
                saves.append(StateSave(sequence, border, row))
                sequence.prefix.states.pending.append(PendingState(border, row, is_passing))
        return saves

    def store(self, sequence: Sequence, num_computed: int) -> None:
        super().store(sequence, num_computed)
        states = sequence.prefix.states
        pending, states.pending = states.pending, []
        for each in pending:
            if each.border > num_computed:  # drafted
                states.pending.append(each)
                continue
            digest = self._hash_before(sequence, each.border)
            self.saved.add(digest, each.row)
            if each.is_passing:
                if states.passing is not None:
                    self.saved.drop(states.passing)
                states.passing = digest

    def abandon(self, sequence: Sequence) -> None:
        for pending in sequence.prefix.states.pending:
            self.saved.give_back(pending.row)
        sequence.prefix.states.pending.clear()

    def num_shareable(self, owner: Sequence, num_tokens: int) -> int:
        states = owner.prefix.states
        if owner.num_computed < num_tokens:
            states.borders.add(num_tokens)
            return num_tokens
        return max((each for each in states.borders if each <= num_tokens), default=0)

    def _forget(self, block: int) -> None:
        self.saved.drop(self._hashes[block])
        super()._forget(block)

    def _hash_before(self, sequence: Sequence, border: int) -> bytes:
        return self.hashes(sequence)[border // self._block_size - 1]

    def _borders(self, sequence: Sequence, start: int, size: int) -> list[tuple[int, bool]]:
        """Return the borders of blocks within ``size`` tokens from ``start`` on at which to save
        the state, each with whether its state is dropped once a later one is saved."""
        block, end = self._block_size, start + size
        step = INTERVAL * block
        lasting = {
            *range(start // step * step + step, end + 1, step),
            *sequence.prefix.states.borders,
        }
        is_whole = start < sequence.prompt_len and end >= sequence.num_tokens
        # A prompt's last token is always computed, for its logits.
        last = (end - is_whole) // block * block
        if is_whole:
            lasting.add(last)
        borders = [(border, False) for border in sorted(lasting) if start < border <= end]
        if last > start and last not in lasting:
            borders.append((last, True))
        return borders
