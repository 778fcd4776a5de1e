"""Where the rows of a flat batch find entries and their nearest tokens in the pages of a layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.engine.backends.sparse.rows import RowGroup
from workers.engine.core.layer_shape import LayerShape, Visible


@dataclass(slots=True)
class EntryGroup(RowGroup):
    """A group's rows, which attend to entries: to a row, its ``positions`` are the number of the
    last entry that it sees, or -1, and the tokens of its sequence are entries.

    An entry of ``rate`` tokens is stored in the block of the last of them, and seen from it on.
    """

    rate: int = 1
    num_lines: int = 1
    """Of a block."""
    first_line: int = 0
    """The first of them that is an entry's."""

    @property
    def width(self) -> int:
        """The number of entries in the block tables."""
        return self.blocks.shape[1] * self.block_size // self.rate

    @property
    def slots(self) -> Tensor:
        """The lines of the entries, [rows or 1, width]."""
        if (slots := self._derived.get("slots")) is None:
            numbers = torch.arange(self.width, device=self.blocks.device)
            block = ((numbers + 1) * self.rate - 1) // self.block_size
            within = self.first_line + find_in_block(numbers, self.rate, self.block_size)
            slots = self.blocks.long()[:, block] * self.num_lines + within
            self._derived["slots"] = slots
        return slots


def find_in_block(numbers: Tensor, rate: int, block_size: int) -> Tensor:
    """Return the places of entries among those of their blocks."""
    first_token = ((numbers + 1) * rate - 1) // block_size * block_size
    return numbers - first_token // rate


def find_entries(group: RowGroup, shape: LayerShape) -> EntryGroup:
    """Return a group as its rows see the entries of a layer."""
    assert shape.rate is not None
    return EntryGroup(
        group.start,
        group.end,
        group.blocks,
        torch.div(group.positions.long() + 1, shape.rate, rounding_mode="floor") - 1,
        group.block_size,
        rate=shape.rate,
        num_lines=shape.num_lines(group.block_size),
        first_line=shape.num_token_lines(group.block_size),
    )


@dataclass(frozen=True, slots=True)
class NearTokens:
    """The tokens nearest to the rows of a group: their ``lines`` [rows, n] in a layer's pages, or
    [n] if they are the same for all rows, and which are ``hidden`` from a row [rows, n]."""

    lines: Tensor
    hidden: Tensor


def find_near(group: RowGroup, visible: Visible, num_lines: int, *, together: bool) -> NearTokens:
    """Return the tokens that the rows of a group may see, if they see a window: those of all rows
    ``together``, which must be of one sequence, or of each row."""
    reach = min(visible.window or group.width, group.width)
    positions = group.positions.long()
    back = torch.arange(1 - reach, len(positions) if together else 1, device=positions.device)
    places = (positions[:1] if together else positions[:, None]) + back
    seen = places.clamp(0, group.width - 1)
    block, within = seen // group.block_size, seen % group.block_size
    blocks = group.blocks.long()
    found = blocks[0][block] if len(blocks) == 1 else blocks.gather(1, block)
    hidden = visible.hides(positions[:, None], places) | (places < 0)
    return NearTokens(found * num_lines + within, hidden)
