"""Builds the inputs of a step on the GPU, with one copy per step."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.base.transfers import Ints
from workers.engine.backends.cuda.kv_cache import TokenMajorCache
from workers.engine.backends.cuda.metadata import PagedMetadata, SequencePiece

TOKEN, POSITION, SLOT, LENGTH, ROW = range(5)
"""Columns of a decode table; ``ROW`` is the sequence's row in the block tables."""
COLUMNS = 5


@dataclass(frozen=True, slots=True)
class DecodeTable:
    """The input of a captured decode step: ``rows`` [num_rows, COLUMNS] on the device.

    The graph derives the attention metadata from it.
    """

    rows: Tensor


def decode_table(
    token_ids: Rows[int] | Ints,
    positions: Ints,
    slots: Ints,
    rows: Ints,
    num_rows: int,
    null_row: int,
) -> Ints:
    """Return a decode table [num_rows, COLUMNS]: one token of each sequence, then padding rows.

    ``slots`` are the tokens' places in the cache, ``rows`` the rows of their sequences in the block
    tables. A padding row computes token 0 at position 0 and stores it in the null block, which is
    always masked.
    """
    count = len(token_ids)
    table = np.zeros((num_rows, COLUMNS), dtype=np.int64)
    table[count:, LENGTH] = 1
    table[count:, ROW] = null_row
    table[:count, TOKEN] = token_ids
    table[:count, POSITION] = positions
    table[:count, SLOT] = slots
    table[:count, LENGTH] = positions + 1
    table[:count, ROW] = rows
    return table


def decode_metadata(
    cache: TokenMajorCache, table: Tensor, block_tables: Tensor, max_k: int
) -> PagedMetadata:
    """Return the metadata of a decode table on the device, with the block tables [n, blocks] of its
    sequences. Uses tensor operations only, for capture."""
    rows = len(table)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=table.device)
    return PagedMetadata(
        cache=cache,
        slots=table[:, SLOT],
        cu_seq_q=starts,
        cu_seq_k=starts * max_k,
        lengths=table[:, LENGTH].int(),
        block_table=block_tables,
        max_q=1,
        max_k=max_k,
        num_singles=rows,
        pieces=[],
    )


def mix_metadata(
    cache: TokenMajorCache | CacheProbe,
    sizes: Rows[int],
    first: Rows[int],
    tensors: Rows[Tensor],
    block_size: int,
) -> PagedMetadata:
    """Return the metadata of sequences with ``sizes`` tokens each, from positions ``first`` on.

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
