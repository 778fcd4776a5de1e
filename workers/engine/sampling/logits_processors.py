"""Changes to the logits of the rows that ask for them. Other rows stay untouched.

The sampler calls ``set_rows`` when the rows of a step change, and ``apply`` in every step.
"""

from collections.abc import Sequence as Rows
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.sequence import Sequence


class LogitsProcessor(Protocol):
    def set_rows(self, rows: Rows[Sequence]) -> None:
        """Row ``i`` of the logits that follow belongs to ``rows[i]``."""

    def apply(self, logits: Tensor) -> None:
        """Change float32 ``logits`` [rows, vocabulary] in place."""


class Penalties:
    """Frequency and presence as OpenAI's API defines them, over the tokens of the output so far,
    then repetition as in CTRL (Keskar et al., 2019, section 4.1), over the same tokens or, where
    the engine is set so, those of the prompt too:

    z -= frequency * count + presence;  z = z / repetition if z > 0 else z * repetition

    Only the logits of tokens that occurred are read and written.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, TokenCounts]] = []
        self._counts: dict[Sequence, TokenCounts] = {}
        self._factors = np.empty((0, 3), dtype=np.float32)

    def set_rows(self, rows: Rows[Sequence]) -> None:
        penalised = [(row, seq) for row, seq in enumerate(rows) if seq.sampling.penalizes]
        # The rows of a step can leave out a sequence that comes back: keep counts until it ends.
        self._counts = {seq: c for seq, c in self._counts.items() if not seq.finished}
        for _, seq in penalised:
            self._counts.setdefault(seq, TokenCounts(seq))
        self._rows = [(row, self._counts[seq]) for row, seq in penalised]
        self._factors = np.array(
            [
                (p.frequency_penalty, p.presence_penalty, p.repetition_penalty)
                for p in (seq.sampling for _, seq in penalised)
            ],
            dtype=np.float32,
        ).reshape(-1, 3)

    def apply(self, logits: Tensor) -> None:
        if not self._rows:
            return
        for _, counts in self._rows:
            counts.update()
        sizes = [counts.size for _, counts in self._rows]
        rows = np.repeat([row for row, _ in self._rows], sizes)
        index = (
            torch.from_numpy(rows),
            torch.from_numpy(np.concatenate([c.ids[: c.size] for _, c in self._rows])),
        )
        occurrences = np.concatenate([c.counts[: c.size] for _, c in self._rows])
        frequency, presence, repetition = np.repeat(self._factors, sizes, axis=0).T
        with np.errstate(all="ignore"):  # what overflows ends its own request
            values = logits[index].cpu().numpy() - frequency * occurrences
            values -= np.where(occurrences > 0, presence, np.float32(0))
            values = np.where(values > 0, values / repetition, values * repetition)
        logits[index] = torch.from_numpy(values).to(logits.device)


class TokenCounts:
    """How often each distinct token occurs in a sequence's output, in growing arrays. The prompt's
    tokens count too if the sequence penalises them."""

    def __init__(self, sequence: Sequence) -> None:
        self.ids: NDArray[np.int64] = np.empty(64, dtype=np.int64)
        self.counts: NDArray[np.float32] = np.empty(64, dtype=np.float32)
        self._columns: dict[int, int] = {}
        self._sequence = sequence
        self._num_seen = sequence.prompt_len
        if sequence.penalizes_prompt:
            for token_id in sequence.token_ids[: sequence.prompt_len]:
                if token_id not in self._columns:
                    self._add(token_id)

    @property
    def size(self) -> int:
        return len(self._columns)

    def update(self) -> None:
        """Count the tokens that the sequence gained since the last call."""
        for token_id in self._sequence.token_ids[self._num_seen :]:
            column = self._columns.get(token_id)
            if column is None:
                column = self._add(token_id)
            self.counts[column] += 1
        self._num_seen = self._sequence.num_tokens

    def _add(self, token_id: int) -> int:
        column = self._columns[token_id] = len(self._columns)
        if column == len(self.ids):
            self.ids = np.concatenate([self.ids, np.empty_like(self.ids)])
            self.counts = np.concatenate([self.counts, np.empty_like(self.counts)])
        self.ids[column], self.counts[column] = token_id, 0
        return column


class LogitBias:
    """OpenAI's ``logit_bias``: z[id] += value."""

    def __init__(self) -> None:
        self._index: tuple[Tensor, Tensor] | None = None
        self._values = torch.empty(0)

    def set_rows(self, rows: Rows[Sequence]) -> None:
        entries = [
            (row, token_id, value)
            for row, seq in enumerate(rows)
            for token_id, value in seq.sampling.logit_bias.items()
        ]
        if not entries:
            self._index = None
            return
        row_ids, token_ids, values = zip(*entries, strict=True)
        self._index = (torch.tensor(row_ids), torch.tensor(token_ids))
        self._values = torch.tensor(values, dtype=torch.float32)

    def apply(self, logits: Tensor) -> None:
        if self._index is not None:
            logits[self._index] += self._values.to(logits.device)


class MinTokens:
    """Forbids stop ids and ends of sequence before ``min_tokens``.

    The grammar mask does this for rows under a grammar, since it must not become empty.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, Sequence]] = []

    def set_rows(self, rows: Rows[Sequence]) -> None:
        self._rows = [
            (row, seq)
            for row, seq in enumerate(rows)
            if seq.below_min_tokens and seq.choice.grammar is None
        ]

    def apply(self, logits: Tensor) -> None:
        for row, seq in self._rows:
            if seq.below_min_tokens:
                logits[row, list(seq.choice.stop_checker.end_ids)] = -torch.inf
