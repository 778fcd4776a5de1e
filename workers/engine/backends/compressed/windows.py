"""The windows of tokens that end in a step, and where their tokens are: in the batch, or in rings.

A compressor makes one entry of each window of ``rate`` successive tokens, from what it projected of
the last ``reach`` tokens: the window's own, and perhaps those of the one before. What it may still
need of a sequence's last tokens is its state, a ring: the token at a position is in the line
``position % reach`` of the sequence's row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.transfers import Ints, to_device
from workers.engine.backends.recurrent.batch import StatePiece


class ClosedWindows(NamedTuple):
    """The windows that end in a step, and how the rings of its sequences change."""

    numbers: Tensor
    """The windows' numbers in their sequences, [windows]."""
    last: Tensor
    """The places of their last tokens in the flat batch, [windows]."""
    reach: int
    own: Tensor
    """Which of all tokens [windows * reach] are in the flat batch, and in which places [2, n]."""
    earlier: Tensor
    """Which of them are in the rings, and in which lines [2, n]."""
    missing: Tensor
    """Which of them would lie before the sequence's first token, [n]."""
    copied: Tensor
    """Rows to copy before lines are written, from and to [2, n]."""
    kept: Tensor
    """The lines of rings to write, and the places of their tokens in the flat batch [2, n]."""

    def gather(self, projected: Tensor, rings: Tensor) -> Tensor:
        """Return what was projected of the windows' tokens, [windows, reach, dim]: ``projected``
        [tokens, dim] of the flat batch, and ``rings`` [rows, reach, dim]. Zeros for missing
        tokens."""
        tokens = projected.new_zeros(len(self.numbers) * self.reach, projected.shape[1])
        tokens.index_copy_(0, self.own[0], projected.index_select(0, self.own[1]))
        lines = rings.flatten(0, 1).index_select(0, self.earlier[1])
        tokens.index_copy_(0, self.earlier[0], lines.to(tokens.dtype))
        return tokens.view(-1, self.reach, projected.shape[1])

    def keep(self, projected: Tensor, rings: Tensor) -> None:
        """Bring ``rings`` up to date, and save those that are to be saved."""
        rings.index_copy_(0, self.copied[1], rings.index_select(0, self.copied[0]))
        tokens = projected.index_select(0, self.kept[1]).to(rings.dtype)
        rings.view(-1, rings.shape[2]).index_copy_(0, self.kept[0], tokens)


def find_windows(
    pieces: Sequence[StatePiece], rate: int, reach: int, device: torch.device
) -> ClosedWindows:
    """Return the windows that end in a flat batch of these pieces."""
    parts = [_find_in(piece, rate, reach) for piece in pieces]
    numbers, last, positions, places, lines = map(np.concatenate, zip(*parts, strict=True))
    own, earlier = (places >= 0).ravel(), ((places < 0) & (positions >= 0)).ravel()
    rings = [_find_kept(piece, reach) for piece in pieces]
    saves = [(piece.row, save.row) for piece in pieces for save in piece.saves]
    arrays = [
        numbers,
        last,
        np.stack([np.flatnonzero(own), places.ravel()[own]]),
        np.stack([np.flatnonzero(earlier), lines.ravel()[earlier]]),
        np.flatnonzero(positions < 0),
        np.array(saves, dtype=np.int64).reshape(-1, 2).T,
        np.concatenate(rings, axis=1),
    ]
    ended, ends, *others = to_device(arrays, device)
    return ClosedWindows(ended, ends, reach, *others)


def _find_in(piece: StatePiece, rate: int, reach: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return the numbers and last places [windows] of the windows that end in a piece, and of each
    of their tokens [windows, reach] its position, its place in the flat batch or -1, and its line
    in the rings."""
    end = piece.position + piece.size
    numbers = np.arange(piece.position // rate, end // rate)
    ends = (numbers + 1) * rate
    positions = ends[:, None] + np.arange(-reach, 0)
    places = positions - piece.position + piece.start
    places[positions < piece.position] = -1
    last = ends - 1 - piece.position + piece.start
    return numbers, last, positions, places, piece.row * reach + positions % reach


def _find_kept(piece: StatePiece, reach: int) -> Ints:
    """Return the lines of the piece's ring, and of its copies, that change, and the places of their
    tokens [2, n]."""
    kept = []
    rings = [*((save.row, save.num_tokens) for save in piece.saves), (piece.row, piece.size)]
    for row, size in rings:
        end = piece.position + size
        positions = np.arange(max(piece.position, end - reach), end)
        places = positions - piece.position + piece.start
        kept.append(np.stack([row * reach + positions % reach, places]))
    return np.concatenate(kept, axis=1)
