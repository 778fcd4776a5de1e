"""How the states of a step's sequences are computed: in groups of rows of one length.

A step is one flat batch of tokens, but a recurrent module takes rows of one length. So it is called
once for all sequences with a single token, and once for each other length. Where a state in the
middle of a chunk is to be saved, the chunk is cut for these modules only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.transfers import to_device
from workers.engine.backends.recurrent.states import Rows, StateTable
from workers.engine.core.sequence import Piece
from workers.engine.core.sequence import Sequence as TokenSequence
from workers.engine.core.step import StateSave


class Save(NamedTuple):
    """A state to copy to ``row``, after the first ``num_tokens`` of a piece."""

    num_tokens: int
    row: int


class StatePiece(NamedTuple):
    """Adjacent tokens of a sequence whose states are in row ``row`` of the table."""

    row: int
    start: int
    """The first token's place in the flat batch."""
    size: int
    position: int
    """The first token's position in its sequence."""
    saves: Sequence[Save] = ()

    @property
    def is_fresh(self) -> bool:
        """Whether it begins its sequence."""
        return self.position == 0


@dataclass(frozen=True, slots=True)
class StateGroup:
    """Pieces of one ``size``: the ``places`` [pieces * size] of their tokens in the flat batch, and
    the ``rows`` of their states."""

    places: Tensor
    rows: Rows
    size: int
    is_fresh: bool
    saved: Tensor
    """The rows whose states are copied afterwards, to the rows ``saved_to``."""
    saved_to: Tensor

    def split(self, tokens: Tensor) -> Tensor:
        """Return the group's part [pieces, size, ...] of a flat batch [1, tokens, ...]."""
        chosen = tokens[0].index_select(0, self.places)
        return chosen.view(-1, self.size, *chosen.shape[1:])


class StateBatch:
    """The pieces of a flat batch. Modules that cannot continue a sequence with several tokens at
    once, since ``continues`` is false, get them one by one."""

    def __init__(self, table: StateTable, pieces: Sequence[StatePiece], continues: bool) -> None:
        self.table = table
        self.pieces = pieces
        self.num_tokens = sum(piece.size for piece in pieces)
        self._continues = continues

    @cached_property
    def groups(self) -> list[StateGroup]:
        """All pieces, for modules. Earlier tokens of a sequence are in earlier groups."""
        groups = []
        for parts in zip_longest(*(list(_cut(piece, self._continues)) for piece in self.pieces)):
            alike: dict[tuple[bool, int], list[StatePiece]] = {}
            for part in parts:
                if part is not None:
                    alike.setdefault((part.is_fresh, part.size), []).append(part)
            groups += [_group(members, self.table.device) for members in alike.values()]
        return groups

    def save(self) -> None:
        """Copy the states that are to be saved, after a captured step has computed all pieces,
        which have one token each."""
        copies = [(piece.row, save.row) for piece in self.pieces for save in piece.saves]
        if copies:
            [rows] = to_device([np.array(copies).T], self.table.device)
            self.table.copy_rows(*rows)


class DecodeBatch:
    """Single tokens of sequences with states, whose rows [tokens] only the device knows, as in a
    captured step."""

    def __init__(self, table: StateTable, rows: Tensor) -> None:
        self.table = table
        self.num_tokens = len(rows)
        none = rows[:0]
        places = torch.arange(len(rows), device=rows.device)
        self.groups = [StateGroup(places, rows, 1, is_fresh=False, saved=none, saved_to=none)]


def lay_out_states(
    table: StateTable, layout: Sequence[Piece], saves: Sequence[StateSave], continues: bool
) -> StateBatch:
    """Return the pieces of a flat batch with this layout, whose sequences have the rows of their
    slots. ``saves`` may be of others too."""
    wanted: dict[TokenSequence, list[Save]] = {}
    for seq, num_tokens, row in saves:
        wanted.setdefault(seq, []).append(Save(num_tokens - seq.num_computed, row))
    pieces, start = [], 0
    for seq, first, size in layout:
        pieces.append(StatePiece(seq.slot, start, size, first, wanted.get(seq, ())))
        start += size
    return StateBatch(table, pieces, continues)


def _cut(piece: StatePiece, continues: bool) -> Iterator[StatePiece]:
    """Yield a piece in parts that end where a state is saved."""
    rows = {save.num_tokens: save.row for save in piece.saves}
    assert len(rows) == len(piece.saves), "drafts, which are computed in C, save twice at one place"
    ends = {*rows, piece.size}
    if not continues:
        ends.update(range(min(ends) if piece.is_fresh else 1, piece.size))
    for start, end in pairwise([0, *sorted(ends)]):
        saves = [Save(end - start, rows[end])] if end in rows else ()
        at, position = piece.start + start, piece.position + start
        yield StatePiece(piece.row, at, end - start, position, saves)


def _group(pieces: list[StatePiece], device: torch.device) -> StateGroup:
    pieces.sort()
    size, num = pieces[0].size, len(pieces)
    starts = np.array([piece.start for piece in pieces])
    first, last = pieces[0].row, pieces[-1].row
    # Adjacent rows are computed in place, without copies.
    is_adjacent = last - first == num - 1
    saving = [(piece.row, save.row) for piece in pieces for save in piece.saves]
    places, rows, saves = to_device(
        [
            (starts[:, None] + np.arange(size)).flatten(),
            np.array([piece.row for piece in pieces]),
            np.array(saving, dtype=np.int64).reshape(-1, 2).T,
        ],
        device,
    )
    saved, saved_to = saves
    return StateGroup(
        places=places,
        rows=slice(first, last + 1) if is_adjacent else rows,
        size=size,
        is_fresh=pieces[0].is_fresh,
        saved=saved,
        saved_to=saved_to,
    )
