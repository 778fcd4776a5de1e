"""Rows of a vocabulary in pieces of equal width."""

from torch import Tensor
from torch.nn.functional import pad

CHUNK = 128


def split_chunks(rows: Tensor, filler: float = 0.0) -> Tensor:
    """Return a view [n, chunks, CHUNK] of ``rows`` [n, vocabulary], padded with ``filler``."""
    if padding := -rows.shape[1] % CHUNK:
        rows = pad(rows, (0, padding), value=filler)
    return rows.view(len(rows), -1, CHUNK)


def chunk_sums(rows: Tensor) -> Tensor:
    """Float64 sums [n, chunks] of ``rows`` [n, vocabulary], the same bits for any n.

    torch splits the sum of a single long row among its threads, so that the row would differ in
    its last bits from the same row among others; sums of chunks are too short for that.
    """
    return split_chunks(rows).sum(-1).double()
