"""How a flat batch lies on the GPU: what each row attends to, and by which kernels."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.cuda import launches
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, TokenMajorLayer, Way
from workers.engine.backends.sparse.rows import LineKernel, RowGroup, SlotKernel
from workers.engine.core.layer_shape import EVERYTHING


@dataclass(frozen=True, slots=True)
class SequencePiece:
    """Rows ``start`` to ``end`` of a flat batch: consecutive tokens of one sequence. The last one
    is the sequence's ``length``-th token; the sequence fills ``num_blocks`` of its block table."""

    start: int
    end: int
    length: int
    num_blocks: int


@dataclass(slots=True)
class PagedMetadata:
    """Where each token of the flat batch is stored (``slots`` [tokens]) and what it attends to.

    Each of n sequences has consecutive tokens, delimited by ``cu_seq_q`` [n + 1]; sequences with
    one token come first. ``lengths`` [n] are the sequence lengths up to their last token,
    ``block_table`` [n, blocks] is padded with the null block. The kernel requires ``cu_seq_k``
    [n + 1] but ignores it where there is a block table. ``max_k`` bounds ``lengths``.

    ``num_singles`` and ``pieces`` are the same layout on the host, for attention without the
    kernel: first ``num_singles`` sequences of one token, then ``pieces``.
    """

    cache: TokenMajorCache | CacheProbe
    slots: Tensor
    cu_seq_q: Tensor
    cu_seq_k: Tensor
    lengths: Tensor
    block_table: Tensor
    max_q: int
    max_k: int
    num_singles: int
    pieces: list[SequencePiece]
    _context: "Context | None" = field(default=None, repr=False)
    _rows: list[RowGroup] | None = field(default=None, repr=False)

    def row_groups(self, block_size: int) -> list[RowGroup]:
        """Return the rows that attend together, made once for all layers."""
        if self._rows is None:
            singles, self._rows = self.num_singles, []
            if singles:
                blocks, positions = self.block_table[:singles], self.lengths[:singles] - 1
                self._rows.append(RowGroup(0, singles, blocks, positions, block_size))
            for row, piece in enumerate(self.pieces, start=singles):
                blocks = self.block_table[row : row + 1, : piece.num_blocks]
                first = piece.length - (piece.end - piece.start)
                positions = torch.arange(first, piece.length, device=self.slots.device)
                self._rows.append(RowGroup(piece.start, piece.end, blocks, positions, block_size))
        return self._rows

    def slot_kernel(self, layer: TokenMajorLayer, rank: int) -> SlotKernel | None:
        """Return the kernel for latents of this size, read in place, if the layer has it."""
        if layer.way is not Way.LATENTS or rank > launches.MAX_RANK:
            return None
        return lambda query, slots, rule: launches.mix_latents(
            query, layer.tokens, slots, rank, rule
        )

    def line_kernel(self, layer: TokenMajorLayer) -> LineKernel | None:
        """Return the decode kernel over pages of one line each, if the layer has it."""
        if layer.way is not Way.SPLIT or layer.shape.visible != EVERYTHING:
            return None
        lines = layer.as_lines()
        return lambda query, table, seen, rule: launches.split(
            query, lines, table, seen, table.shape[1], rule
        )

    def context(self, block_size: int) -> "Context":
        """Return what the pieces attend to; made once for all layers, without waiting for the
        device."""
        if self._context is None:
            self._context = Context.gather(self, block_size)
        return self._context


class Context(NamedTuple):
    """The sequences of the pieces, one after the other: their ``slots`` [tokens] in the cache.

    ``cu_seq_q`` and ``cu_seq_k`` [n + 1] say where each begins among the pieces' tokens and among
    ``slots``; ``max_q`` and ``max_k`` bound their lengths. ``is_own``: the pieces are whole
    sequences, whose keys and values need not be read from the cache.
    """

    slots: Tensor
    cu_seq_q: Tensor
    cu_seq_k: Tensor
    max_q: int
    max_k: int
    is_own: bool

    @classmethod
    def gather(cls, metadata: PagedMetadata, block_size: int) -> "Context":
        singles, pieces = metadata.num_singles, metadata.pieces
        lengths = metadata.lengths[singles:]
        ends = lengths.cumsum(0, dtype=torch.int32)
        total = sum(piece.length for piece in pieces)
        owners = torch.repeat_interleave(lengths, output_size=total)
        places = torch.arange(total, device=lengths.device) - (ends - lengths)[owners]
        blocks = metadata.block_table[singles:][owners, places // block_size]
        return cls(
            slots=blocks.long() * block_size + places % block_size,
            cu_seq_q=metadata.cu_seq_q[singles:] - singles,
            cu_seq_k=pad(ends, (1, 0)),
            max_q=max(piece.end - piece.start for piece in pieces),
            max_k=max(piece.length for piece in pieces),
            is_own=all(piece.length == piece.end - piece.start for piece in pieces),
        )
