"""Builds the inputs of a step on the GPU, with one copy per step."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.cuda.attention import PagedMetadata, SequencePiece
from workers.engine.cuda.kv_cache import TokenMajorCache
from workers.engine.model.kv_cache import CacheProbe

Ints = NDArray[np.int64]

TOKEN, POSITION, SLOT, LENGTH, TABLE = range(5)
"""Columns of a decode table; the block table is what follows ``TABLE``."""


@dataclass(frozen=True, slots=True)
class DecodeTable:
    """The input of a captured decode step: ``rows`` [num_rows, 4 + blocks] on the device.

    The graph derives the attention metadata from it.
    """

    rows: Tensor


def to_device(arrays: Rows[Ints], device: torch.device) -> list[Tensor]:
    """Copy 64-bit arrays to the device, all at once and without waiting for it.

    The staging memory is pinned and comes from torch's allocator, which does not reuse it before
    the copy has run.
    """
    staged = torch.empty(
        sum(array.size for array in arrays), dtype=torch.int64, pin_memory=device.type == "cuda"
    )
    np.concatenate([array.ravel() for array in arrays], out=staged.numpy())
    moved = staged.to(device, non_blocking=True)
    parts = torch.split(moved, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def decode_table(
    token_ids: Rows[int], positions: Ints, block_tables: Ints, block_size: int, num_rows: int
) -> Ints:
    """A decode table [num_rows, 4 + blocks]: one token of each sequence, then padding rows.

    A padding row computes token 0 at position 0 and stores it in the null block, which is always
    masked.
    """
    count = len(token_ids)
    table = np.zeros((num_rows, TABLE + block_tables.shape[1]), dtype=np.int64)
    table[count:, LENGTH] = 1
    table[:count, TOKEN] = token_ids
    table[:count, POSITION] = positions
    table[:count, SLOT] = slots(positions, block_tables, block_size)
    table[:count, LENGTH] = positions + 1
    table[:count, TABLE:] = block_tables
    return table


def decode_metadata(cache: TokenMajorCache, table: Tensor, max_k: int) -> PagedMetadata:
    """The metadata of a decode table on the device. Uses tensor operations only, for capture."""
    rows = len(table)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=table.device)
    return PagedMetadata(
        cache=cache,
        slots=table[:, SLOT],
        cu_seq_q=starts,
        cu_seq_k=starts * max_k,
        lengths=table[:, LENGTH].int(),
        block_table=table[:, TABLE:].int(),
        max_q=1,
        max_k=max_k,
        num_singles=rows,
        pieces=[],
    )


def mixed_metadata(
    cache: TokenMajorCache | CacheProbe,
    sizes: Rows[int],
    first: Rows[int],
    tensors: Rows[Tensor],
    block_size: int,
) -> PagedMetadata:
    """The metadata of sequences with ``sizes`` tokens each, from positions ``first`` on.

    Sequences with one token come first. ``tensors`` are slots, starts, lengths and block tables on
    the device.
    """
    slots, starts, lengths, block_table = tensors
    max_k = max(size + position for size, position in zip(sizes, first, strict=True))
    num_singles = sum(size == 1 for size in sizes)
    pieces = [
        SequencePiece(
            start, end, position + end - start, -(-(position + end - start) // block_size)
        )
        for (start, end), position in zip(
            pairwise(accumulate(sizes, initial=0)), first, strict=True
        )
    ]
    return PagedMetadata(
        cache=cache,
        slots=slots,
        cu_seq_q=starts.int(),
        cu_seq_k=torch.arange(len(sizes) + 1, dtype=torch.int32, device=slots.device) * max_k,
        lengths=lengths.int(),
        block_table=block_table.int(),
        max_q=max(sizes),
        max_k=max_k,
        num_singles=num_singles,
        pieces=pieces[num_singles:],
    )


def slots(positions: Ints, block_tables: Ints, block_size: int) -> Ints:
    """The cache slots of tokens [n] at ``positions`` [n] under ``block_tables`` [n, blocks]."""
    blocks = np.take_along_axis(block_tables, (positions // block_size)[:, None], axis=1)[:, 0]
    found: Ints = blocks * block_size + positions % block_size
    return found
