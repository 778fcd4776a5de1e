"""Decode steps captured as CUDA graphs, one per number of rows: a step of hundreds of small kernels
costs one launch."""

import logging
from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

from workers.engine.cuda.inputs import LENGTH

logger = logging.getLogger(__name__)

_WARM_UP_RUNS = 2
"""Runs before a capture: libraries allocate and choose kernels in the first ones."""

Decode = Callable[[Tensor], Tensor]
"""A decode table [rows, 4 + blocks] on the device to logits [rows, vocabulary]."""


def buckets(max_rows: int) -> list[int]:
    """The numbers of rows to capture. Padding adds at most 7 rows and never doubles a batch."""
    return sorted(
        {size for size in (1, 2, 4, *range(8, max_rows, 8)) if size < max_rows} | {max_rows}
    )


class DecodeGraphs:
    """Replays ``decode`` over static buffers: one input, whose first rows each graph reads, and one
    output per graph. All graphs share one memory pool, since only one runs at a time."""

    def __init__(self, max_rows: int, table_width: int, device: torch.device) -> None:
        self._sizes = buckets(max_rows)
        self._table = torch.zeros((max_rows, table_width), dtype=torch.int64, device=device)
        self._table[:, LENGTH] = 1
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, Tensor] = {}

    def num_rows(self, count: int) -> int | None:
        """The number of rows that a batch of ``count`` is padded to, or None if it is too large."""
        place = bisect_left(self._sizes, count)
        return self._sizes[place] if place < len(self._sizes) else None

    @torch.inference_mode()
    def capture(self, decode: Decode) -> None:
        """Capture every size, the largest first: the others share its memory."""
        with torch.cuda.device(self._table.device):  # whose stream is captured
            pool = torch.cuda.graph_pool_handle()
            for size in reversed(self._sizes):
                table = self._table[:size]
                for _ in range(_WARM_UP_RUNS):
                    decode(table)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    self._logits[size] = decode(table)
                self._graphs[size] = graph
        logger.info("captured decode graphs of %s rows", ", ".join(map(str, self._sizes)))

    def replay(self, table: Tensor) -> Tensor:
        """Logits of a decode table padded to :meth:`num_rows`; valid until the next replay."""
        size = len(table)
        self._table[:size].copy_(table)
        self._graphs[size].replay()
        return self._logits[size]
