"""The flat batch of a step: what the forward computes, and which sequences its logits belong to."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.core.plan import BatchPlan
from workers.engine.core.sequence import Piece, Sequence


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows [n] of a flat batch that one adapter is added to."""

    adapter: str
    rows: Tensor


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A flat batch [tokens]: single tokens first, those with the longest context first, then
    chunks of several.

    ``layout`` maps tokens to sequences; ``sampled[i]`` continues from the logits of row
    ``logits_rows[i]``. The remaining logits rows score prompts, as ``scored`` describes.

    ``apart`` is a second batch of the same step, or None: the sequences that must run through the
    model's modules while the C forward computes the rest.
    """

    input_ids: Tensor
    position_ids: Tensor
    metadata: Any
    """Where tokens are stored and what they attend to, as the backend lays it out for itself."""
    logits_rows: Tensor
    layout: list[Piece]
    sampled: list[Sequence]
    scored: list[Piece]
    adapter_rows: list[AdapterRows]
    states: Any = None
    """The same for modules that keep states, or None."""
    apart: "ModelInput | None" = None
    plan: BatchPlan | None = None
    """What the tensors were made of, without the sequences."""
    faults: dict[int, Exception] = field(default_factory=dict)
    """By the row of ``sampled``: why the forward has no logits for it."""

    @property
    def is_recorded(self) -> bool:
        """Whether hooks read or change the values between the model's modules."""
        return any(seq.record is not None for seq, _, _ in (self.apart or self).layout)

    @property
    def all_sampled(self) -> list[Sequence]:
        """The sequences that this step samples, in the order of its logits."""
        return self.sampled if self.apart is None else self.sampled + self.apart.sampled

    @property
    def all_scored(self) -> list[Piece]:
        """The prompt tokens that this step scores, in the order of its logits."""
        return self.scored if self.apart is None else self.scored + self.apart.scored


def find_scored_pieces(layout: list[Piece]) -> tuple[list[Piece], NDArray[np.int64]]:
    """Return the positions of a flat batch that score a prompt, and their rows."""
    pieces: list[Piece] = []
    rows = [np.empty(0, dtype=np.int64)]
    row = 0
    for seq, position, size in layout:
        if seq.logprobs is not None and seq.logprobs.prompt is not None:
            first, count = seq.logprobs.prompt.due(position, size)
            if count:
                pieces.append((seq, first, count))
                rows.append(np.arange(count) + (row + first - position))
        row += size
    return pieces, np.concatenate(rows)
