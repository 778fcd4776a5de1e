"""A step as plain numbers: enough for a process that has the model and a cache, but no sequences.

The scheduler's decision becomes a plan; a runner turns the plan into tensors. Where several
processes compute one model, the first of them sends its plans to the others.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NULL_BLOCK = 0
"""Never allocated. It pads block tables, so its contents stay zero."""


class Placed(Protocol):
    """Something with a slot, and the blocks that its slot's row in the block tables holds."""

    @property
    def slot(self) -> int: ...
    @property
    def block_ids(self) -> list[int]: ...


class Placement(NamedTuple):
    slot: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A flat batch of pieces: adjacent tokens of one sequence each, single tokens first."""

    slots: Ints
    """The slot of each piece's sequence."""
    first: Ints
    """The position of each piece's first token."""
    sizes: Ints
    token_ids: Ints
    """The ids of all tokens; zeros if the plan is ``ahead``."""
    logits_rows: Ints
    """The tokens whose logits are wanted."""
    as_graph: bool = False
    """The step replays a captured graph."""
    ahead: bool = False
    """The tokens are the samples of the step before, which only the device knows."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Changes of the cache and of the block tables, and then a batch."""

    tainted: list[int]
    """Blocks to scrub."""
    admitted: list[Placement]
    """Slots with a new sequence."""
    grown: list[Placement]
    """Slots whose sequence has more blocks."""
    batch: BatchPlan

    @classmethod
    def make(
        cls, tainted: list[int], admitted: Rows[Placed], grown: Rows[Placed], batch: BatchPlan
    ) -> Self:
        return cls(tainted, _placements(admitted), _placements(grown), batch)

    def to_bytes(self) -> bytes:
        """Return the plan as 64-bit integers: twelve lengths and flags, then the arrays in
        order."""
        placed = self.admitted + self.grown
        batch = self.batch
        blocks = [each.block_ids for each in placed]
        arrays: list[Rows[int] | Ints] = [
            self.tainted,
            [each.slot for each in placed],
            [len(ids) for ids in blocks],
            [block for ids in blocks for block in ids],
            batch.slots,
            batch.first,
            batch.sizes,
            batch.token_ids,
            batch.logits_rows,
        ]
        flags = [len(self.admitted), batch.as_graph, batch.ahead]
        head = [*map(len, arrays), *flags]
        return np.concatenate([np.asarray(a, dtype=np.int64) for a in (head, *arrays)]).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        numbers = np.frombuffer(data, dtype=np.int64).copy()  # torch wants arrays it may write to
        lengths, flags = numbers[:_ARRAYS], numbers[_ARRAYS:_HEAD]
        ends = _HEAD + lengths.cumsum()
        arrays = [numbers[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        tainted, slots, counts, blocks = arrays[:4]
        num_admitted, as_graph, ahead = flags.tolist()
        each = np.split(blocks, counts.cumsum()[:-1]) if len(counts) else []
        placed = [Placement(s, ids.tolist()) for s, ids in zip(slots.tolist(), each, strict=True)]
        return cls(
            tainted=tainted.tolist(),
            admitted=placed[:num_admitted],
            grown=placed[num_admitted:],
            batch=_batch(arrays[4:], bool(as_graph), bool(ahead)),
        )


_ARRAYS = 9
_HEAD = _ARRAYS + 3


def _batch(arrays: list[Ints], as_graph: bool, ahead: bool) -> BatchPlan:
    slots, first, sizes, token_ids, logits_rows = arrays
    return BatchPlan(slots, first, sizes, token_ids, logits_rows, as_graph, ahead)


def _placements(placed: Rows[Placed]) -> list[Placement]:
    return [Placement(each.slot, each.block_ids) for each in placed]
