"""How often each token occurs in a sequence: on the host, and for many rows on a device."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.backends.base.transfers import Ints, floats_to_device, to_device
from workers.engine.core.draft import NO_DRAFT
from workers.engine.core.sequence import Sequence

_ROOM = 64
"""Tokens for each row that a placement can gain before it is made again."""


class TokenCounts:
    """How often each distinct token occurs in a sequence's output, in growing arrays. The prompt's
    tokens count too if the sequence penalises them."""

    def __init__(self, sequence: Sequence) -> None:
        self.ids: Ints = np.empty(64, dtype=np.int64)
        self.counts: NDArray[np.float32] = np.empty(64, dtype=np.float32)
        self.columns: dict[int, int] = {}
        """The place of each token in these arrays."""
        self.sequence = sequence
        self._num_seen = sequence.prompt_len
        if sequence.rules.penalizes_prompt:
            for token_id in sequence.token_ids[: sequence.prompt_len]:
                if token_id not in self.columns:
                    self._add(token_id)

    @property
    def size(self) -> int:
        return len(self.columns)

    def after(self, num_drafted: int) -> tuple[Ints, NDArray[np.float32]]:
        """Return the distinct tokens [n] of the sequence and of the beginning of its draft, and how
        often each occurs [n]. Valid until the next call."""
        token_ids = self.sequence.token_ids
        if len(token_ids) > self._num_seen:
            self._count(token_ids[self._num_seen :])
            self._num_seen = len(token_ids)
        size, draft = len(self.columns), self.sequence.draft
        if draft is NO_DRAFT:
            return self.ids[:size], self.counts[:size]
        drafted = draft.token_ids[:num_drafted]
        self._count(drafted)
        counted = self.ids[: self.size].copy(), self.counts[: self.size].copy()
        for token_id in drafted:
            self.counts[self.columns[token_id]] -= 1
        while self.size > size:
            self.columns.popitem()
        return counted

    def _count(self, token_ids: Rows[int]) -> None:
        for token_id in token_ids:
            column = self.columns.get(token_id)
            if column is None:
                column = self._add(token_id)
            self.counts[column] += 1

    def _add(self, token_id: int) -> int:
        column = self.columns[token_id] = len(self.columns)
        if column == len(self.ids):
            self.ids = np.concatenate([self.ids, np.empty_like(self.ids)])
            self.counts = np.concatenate([self.counts, np.empty_like(self.counts)])
        self.ids[column], self.counts[column] = token_id, 0
        return column


@dataclass(slots=True)
class _Placed:
    """The places of one row's counts. Columns that the row had at first have adjacent ones."""

    sequence: Sequence
    num_seen: int
    """Tokens of the sequence that are counted."""
    columns: dict[int, int]
    offset: int
    """The place of the first column."""
    start: int
    """Where the row begins among all logits of a step."""
    later: dict[int, int] = field(default_factory=dict)
    """The places of tokens that the row has gained since."""


class PlacedCounts:
    """The counts of a step's penalised rows on the device of their logits. Only changes are sent:
    for each token that a row gains, the place of its count.

    The first places, one for each row, are for tokens that only the device knows.
    """

    def __init__(
        self, rows: Rows[tuple[int, TokenCounts]], factors: NDArray[np.float32], logits: Tensor
    ) -> None:
        """``rows`` of ``logits`` with their ``factors`` [rows, 3]. Valid until a row's counts
        change."""
        found = [counts.after(0) for _, counts in rows]
        row_ids, known = np.array([row for row, _ in rows]), [len(ids) for ids, _ in found]
        starts, offsets = row_ids * logits.shape[1], len(rows) + np.cumsum(known) - known
        self._placed = [
            _Placed(counts.sequence, len(counts.sequence.token_ids), counts.columns, offset, start)
            for (_, counts), offset, start in zip(
                rows, offsets.tolist(), starts.tolist(), strict=True
            )
        ]
        each = np.arange(len(rows))
        owners = np.concatenate([each, np.repeat(each, known)])
        token_ids = np.concatenate([np.zeros(len(rows), np.int64), *(ids for ids, _ in found)])
        numbers = np.concatenate([np.zeros(len(rows)), *(some for _, some in found)])
        self._size = len(owners)
        room = self._size + _ROOM * len(rows)
        device = logits.device
        self._places = torch.zeros((2, room), dtype=torch.int64, device=device)
        """For each count, the place of its logit among all of the step's, and the index of its row
        in ``rows``."""
        self._numbers = torch.zeros(room, dtype=torch.int64, device=device)
        self._rows, self._begin, places, counted = to_device(
            [
                row_ids,
                starts,
                np.stack([starts[owners] + token_ids, owners]),
                numbers.astype(np.int64),
            ],
            device,
        )
        self._places[:, : self._size], self._numbers[: self._size] = places, counted
        by_kind = floats_to_device(factors.T.astype(np.float64).ravel(), device)
        self._factors = by_kind.float().view(3, -1)

    def catch_up(self) -> bool:
        """Count the tokens that the rows have gained, without waiting for the device. Return False
        if there is no room for them: the placement must be made again."""
        places: list[int] = []
        index: list[int] = []
        owners: list[int] = []
        size = self._size
        for owner, row in enumerate(self._placed):
            token_ids, columns, later = row.sequence.token_ids, row.columns, row.later
            for token_id in token_ids[row.num_seen :]:
                if token_id in columns:
                    places.append(row.offset + columns[token_id])
                    continue
                if token_id not in later:
                    later[token_id] = size
                    size += 1
                    index.append(row.start + token_id)
                    owners.append(owner)
                places.append(later[token_id])
            row.num_seen = len(token_ids)
        if size > len(self._numbers):
            return False
        if places:
            changed, added = to_device(
                [np.array(places), np.array([index, owners], dtype=np.int64)], self._numbers.device
            )
            self._places[:, self._size : size] = added
            self._numbers.index_add_(0, changed, torch.ones_like(changed))
            self._size = size
        return True

    def penalise(self, logits: Tensor, pending: Tensor | None) -> None:
        """Apply the penalties to ``logits`` in place. ``pending`` [rows of the logits] are tokens
        that follow the counted ones."""
        num_rows = len(self._placed)
        first = num_rows if pending is None else 0
        index, owners = self._places[:, first : self._size].unbind(0)
        numbers = self._numbers[first : self._size]
        if pending is not None:
            last = pending.index_select(0, self._rows) + self._begin
            index[:num_rows] = last
            again = (index == last.index_select(0, owners)).long()
            before = torch.zeros_like(last).index_add_(0, owners, numbers * again)
            numbers = numbers + again
            numbers[:num_rows] += before  # two places of one token get one value
        values = _penalise(logits.take(index), numbers, self._factors.index_select(1, owners))
        logits.put_(index, values)


def _penalise(logits: Tensor, counts: Tensor, factors: Tensor) -> Tensor:
    """Return logits [n] of tokens that occurred, with the penalties applied. ``factors`` [3, n] are
    the frequency, presence and repetition penalties."""
    frequency, presence, repetition = factors
    values = logits - frequency * counts
    values = values - torch.where(counts > 0, presence, 0.0)
    return torch.where(values > 0, values / repetition, values * repetition)
