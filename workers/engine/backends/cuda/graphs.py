"""Steps captured as CUDA graphs, one per number of rows: a step of hundreds of small kernels takes
one launch."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workers.engine.backends.cuda.inputs import COLUMNS, LENGTH, ROW
from workers.engine.backends.parallel.group import Ranks
from workers.engine.compat import end_allocation_to_pool

logger = logging.getLogger(__name__)

Decode = Callable[[Tensor, Tensor], Tensor]
"""A decode table [rows, COLUMNS] and the rows whose logits are wanted [n], on the device, to logits
[n, vocabulary]."""

_FINE = 256
"""Up to this many rows, a graph for each multiple of 8; above, for each multiple of 64."""


def buckets(max_rows: int) -> list[int]:
    """Return the numbers of rows to capture. Padding never doubles a batch, and adds at most 7
    rows, or 63 to more than 256."""
    sizes = (1, 2, 4, *range(8, _FINE, 8), *range(_FINE, max_rows, 64))
    return sorted({size for size in sizes if size < max_rows} | {max_rows})


class DecodeGraphs:
    """Replays ``decode`` over static buffers, whose first rows each graph uses. All graphs share
    one memory pool, since only one runs at a time. A step has at most ``num_slots`` rows with
    logits."""

    def __init__(self, max_rows: int, num_slots: int, device: torch.device) -> None:
        self.max_logits = num_slots
        self._sizes = buckets(max_rows)
        self.table = torch.zeros((max_rows, COLUMNS), dtype=torch.int64, device=device)
        self.table[:, LENGTH] = 1
        self.table[:, ROW] = num_slots  # the row of the block tables without blocks
        self.logits_rows = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._decode: Decode | None = None
        """Kept for the tensors that it holds: the graphs read their memory."""
        self._logits: Tensor | None = None

    def num_rows(self, count: int) -> int | None:
        """Return the number of rows that a batch of ``count`` is padded to, or None if it is too
        large."""
        place = bisect_left(self._sizes, count)
        return self._sizes[place] if place < len(self._sizes) else None

    @torch.inference_mode()
    def capture(self, decode: Decode, ranks: Ranks | None = None) -> None:
        """Capture every size, the largest first: smaller ones share its memory.

        Raises RuntimeError for a ``decode`` that cannot be captured, here or on another rank. The
        device is then as it was.
        """
        self._decode = decode
        with torch.cuda.device(self.table.device):  # whose stream is captured
            pool = torch.cuda.graph_pool_handle()
            for size in reversed(self._sizes):
                warm_up = partial(self._warm_up, decode, size)
                if ranks is not None and (complaint := ranks.try_alone(warm_up)) is not None:
                    raise RuntimeError(complaint)
                warm_up()
                # The sums of a captured forward wait for no other rank before it is replayed.
                record = partial(self._record, decode, size, pool)
                self._graphs[size] = record() if ranks is None else ranks.do_together(record)
        logger.info("captured graphs of %s rows", ", ".join(map(str, self._sizes)))

    def _warm_up(self, decode: Decode, size: int) -> None:
        """Have libraries allocate and choose kernels, and see whether a step waits."""
        table, rows = self.table[:size], self.logits_rows[:size]
        logits = decode(table, rows)
        if self._logits is None:
            self._logits = torch.empty_like(logits)
        with _refusing_to_wait():
            decode(table, rows)

    def _record(self, decode: Decode, size: int, pool: Any) -> torch.cuda.CUDAGraph:
        assert self._logits is not None
        graph = torch.cuda.CUDAGraph()
        with (
            _undone_on_failure(pool),
            torch.cuda.graph(
                graph,
                pool=pool,
                capture_error_mode="thread_local",  # NCCL has a thread
            ),
        ):
            self._logits[:size].copy_(decode(self.table[:size], self.logits_rows[:size]))
        return graph

    def replay(self, table: Tensor, logits_rows: Tensor) -> Tensor:
        """Return the logits [len(logits_rows), vocabulary] of these rows of a decode table padded
        to :meth:`num_rows`; valid until the next replay."""
        assert self._logits is not None
        size, count = len(table), len(logits_rows)
        self.table[:size].copy_(table)
        self.logits_rows.zero_()  # a larger graph's rows are none of this one
        self.logits_rows[:count].copy_(logits_rows)
        self._graphs[size].replay()
        return self._logits[:count]


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Inside this context, an operation that waits for the device raises RuntimeError. In a capture
    it would too, but torch does not recover from that by itself."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _undone_on_failure(pool: tuple[int, int]) -> Iterator[None]:
    """Clean up after a failed capture inside the context: torch leaves its side stream current, and
    its allocator keeps allocating from the graph's pool."""
    stream = torch.cuda.current_stream()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        end_allocation_to_pool(stream.device_index, pool)
        raise
