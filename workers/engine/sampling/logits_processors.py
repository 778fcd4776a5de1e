"""Changes to the logits of the rows that ask for them. Other rows stay untouched.

The sampler calls ``set_rows`` when the rows of a step change, and in every step in which a row asks
for a processor its ``apply``, or ``launch`` if all processors of the step can. It lists them in the
order in which they run, each with the rows that ask for it.
"""

from collections.abc import Sequence as Rows
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.transfers import floats_to_device, to_device
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import Row
from workers.engine.sampling.token_counts import PlacedCounts, TokenCounts

PlacedRow = tuple[int, Row]
"""A row that asks for a processor, after its place in the logits."""


class LogitsProcessor(Protocol):
    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        """Declare the rows of later logits to change. The token of a row follows the sequence's
        tokens and some drafted ones, which count like the sequence's own."""

    def apply(self, logits: Tensor) -> None:
        """Change float32 ``logits`` [rows, vocabulary] in place."""

    def can_launch(self) -> bool:
        """Return whether :meth:`launch` can change the logits of the rows set last."""
        return True

    def needs_tokens(self) -> bool:
        """Return whether :meth:`launch` needs all tokens of the rows set last on the host."""
        return False

    def launch(self, logits: Tensor, pending: Tensor | None) -> None:
        """As :meth:`apply`, without waiting for the device of ``logits``. ``pending`` [rows] holds,
        on that device, the tokens that follow the ones known on the host."""


class Penalties(LogitsProcessor):
    """Frequency and presence as OpenAI's API defines them, over the tokens of the output so far,
    then repetition as in CTRL (Keskar et al., 2019, section 4.1), over the same tokens and, if the
    engine is configured so, the prompt's tokens too:

    z -= frequency * count + presence;  z = z / repetition if z > 0 else z * repetition

    Only the logits of tokens that occurred are read and written.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, TokenCounts, int]] = []
        self._counts: dict[Sequence, TokenCounts] = {}
        self._factors = np.empty((0, 3), dtype=np.float32)
        self._placed: PlacedCounts | None = None

    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        # The rows of a step can leave out a sequence that comes back: keep counts until it ends.
        self._counts = {seq: c for seq, c in self._counts.items() if not seq.finished}
        for _, (seq, _, _) in rows:
            self._counts.setdefault(seq, TokenCounts(seq))
        self._rows = [(row, self._counts[seq], drafted) for row, (seq, drafted, _) in rows]
        self._placed = None
        self._factors = np.array(
            [
                (p.frequency_penalty, p.presence_penalty, p.repetition_penalty)
                for p in (seq.sampling for _, (seq, _, _) in rows)
            ],
            dtype=np.float32,
        ).reshape(-1, 3)

    def can_launch(self) -> bool:
        return not any(num_drafted for _, _, num_drafted in self._rows)

    def launch(self, logits: Tensor, pending: Tensor | None) -> None:
        if self._placed is None or not self._placed.catch_up():
            rows = [(row, counts) for row, counts, _ in self._rows]
            self._placed = PlacedCounts(rows, self._factors, logits)
        self._placed.penalise(logits, pending)

    def apply(self, logits: Tensor) -> None:
        self._placed = None
        counted = [counts.after(num_drafted) for _, counts, num_drafted in self._rows]
        sizes = [len(ids) for ids, _ in counted]
        rows = np.repeat([row for row, _, _ in self._rows], sizes)
        index = (
            torch.from_numpy(rows),
            torch.from_numpy(np.concatenate([ids for ids, _ in counted])),
        )
        occurrences = np.concatenate([counts for _, counts in counted])
        frequency, presence, repetition = np.repeat(self._factors, sizes, axis=0).T
        with np.errstate(all="ignore"):  # an overflow ends its own request
            values = logits[index].cpu().numpy() - frequency * occurrences
            values -= np.where(occurrences > 0, presence, np.float32(0))
            values = np.where(values > 0, values / repetition, values * repetition)
        logits[index] = torch.from_numpy(values).to(logits.device)


class LogitBias(LogitsProcessor):
    """OpenAI's ``logit_bias``: z[id] += value."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, float]] = []
        self._placed: tuple[Tensor, Tensor, Tensor] | None = None

    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        self._entries = [
            (row, token_id, value)
            for row, (seq, _, _) in rows
            for token_id, value in seq.sampling.logit_bias.items()
        ]
        self._placed = None

    def apply(self, logits: Tensor) -> None:
        if self._placed is None:
            rows, ids, values = map(np.array, zip(*self._entries, strict=True))
            row_ids, token_ids = to_device([rows, ids], logits.device)
            added = floats_to_device(values.astype(np.float64), logits.device).float()
            self._placed = row_ids, token_ids, added
        row_ids, token_ids, biases = self._placed
        logits[row_ids, token_ids] += biases

    def launch(self, logits: Tensor, pending: Tensor | None) -> None:
        self.apply(logits)  # the pending token makes no difference
