"""The block tables of all slots, on the host and on the device; only changes are copied.

At pages of 16 tokens and 131,072 tokens of context, the tables of 256 sequences take 8 MiB: too
much to send in every step.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.transfers import Ints, to_device
from workers.engine.core.plan import NULL_BLOCK, Placed


class BlockTables:
    """Row ``slot`` holds the blocks of the slot's sequence, then null blocks. One more row, for the
    padding of a batch, holds only null blocks."""

    @torch.inference_mode()
    def __init__(self, num_slots: int, width: int, device: torch.device) -> None:
        self.num_slots, self.width = num_slots, width
        self._here = np.full((num_slots, width), NULL_BLOCK, dtype=np.int64)
        self._filled = [0] * num_slots
        self.on_device = torch.full(
            (num_slots + 1, width), NULL_BLOCK, dtype=torch.int32, device=device
        )
        """[num_slots + 1, width], always in the same memory."""

    @torch.inference_mode()
    def follow(self, admitted: Iterable[Placed], grown: Iterable[Placed]) -> None:
        """Copy the blocks of sequences with a new slot or more blocks, without waiting for the
        device."""
        places: list[Ints] = []
        blocks: list[Ints] = []
        for first, sequences in ((True, admitted), (False, grown)):
            for seq in sequences:
                begin = 0 if first else self._filled[seq.slot]
                end = len(seq.block_ids)
                row = self._here[seq.slot]
                row[begin:end] = seq.block_ids[begin:]
                row[end : self._filled[seq.slot]] = NULL_BLOCK  # of the slot's last owner
                end = max(end, self._filled[seq.slot])
                places.append(np.arange(begin, end) + seq.slot * self.width)
                blocks.append(row[begin:end])
                self._filled[seq.slot] = len(seq.block_ids)
        if places:
            index, changed = to_device(
                [np.concatenate(places), np.concatenate(blocks)], self.on_device.device
            )
            self.on_device.view(-1).index_copy_(0, index, changed.int())

    def rows(self, slots: Tensor, width: int | None = None) -> Tensor:
        """Return the tables [n, width] of ``slots`` [n], a tensor on the device."""
        return self.on_device[:, :width].index_select(0, slots)

    def places(self, slots: Ints, positions: Ints, block_size: int) -> Ints:
        """Return where the cache stores the tokens at ``positions`` [n] of the sequences in
        ``slots``."""
        starts: Ints = self._here[slots, positions // block_size] * block_size
        return starts + positions % block_size
