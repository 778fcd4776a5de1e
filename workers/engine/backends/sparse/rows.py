"""Rows of a flat batch that attend together, as every device lays them out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.core.layer_shape import Visible

SlotKernel = Callable[[Tensor, Tensor, AttentionRule], Tensor]
"""Takes queries [rows, heads, dim] and the slots [rows, n] of each row's tokens, of which negative
ones are none; returns mixed latents [rows, heads, rank]."""
LineKernel = Callable[[Tensor, Tensor, Tensor, AttentionRule], Tensor]
"""Takes queries [rows, heads, dim], the lines [rows, n] that hold each row's keys and values, and
how many of them [rows] it sees; returns [rows, heads, value_dim]."""


class FlatLayer(Protocol):
    """A layer's pages with one head."""

    block_size: int

    @property
    def tokens(self) -> Tensor:
        """The keys [slots, dim]."""

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key`` and ``value`` [tokens, heads, dim] at ``slots`` [tokens]."""


@dataclass(slots=True)
class RowGroup:
    """Rows ``start`` to ``end`` of the flat batch, at ``positions`` [rows] of their sequences.

    ``blocks`` [rows, blocks] are their block tables, padded with the null block; [1, blocks] if the
    rows are tokens of one sequence.
    """

    start: int
    end: int
    blocks: Tensor
    positions: Tensor
    block_size: int
    _derived: dict[Any, Tensor] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The number of tokens in the block tables."""
        return self.blocks.shape[1] * self.block_size

    @property
    def slots(self) -> Tensor:
        """Where the tokens of the block tables are stored, [rows or 1, width]."""
        if (slots := self._derived.get("slots")) is None:
            within = torch.arange(self.block_size, device=self.blocks.device)
            slots = (self.blocks.long()[:, :, None] * self.block_size + within).flatten(1)
            self._derived["slots"] = slots
        return slots

    def hidden(self, visible: Visible) -> Tensor:
        """Return whether a token of the block table is hidden from a row, [rows, width]."""
        if (hidden := self._derived.get(visible)) is None:
            places = torch.arange(self.width, device=self.positions.device)
            hidden = visible.hides(self.positions.long()[:, None], places)
            self._derived[visible] = hidden
        return hidden

    def find_slots(self, places: Tensor, rows: slice) -> Tensor:
        """Return where the tokens at ``places`` [rows, n] of the sequences are stored."""
        slots = self.slots
        if len(slots) == 1:
            return slots[0][places]
        return slots[rows].gather(1, places)

    def cut(self, row_size: int, limit: int) -> Iterator[slice]:
        """Cut the group into pieces of rows, which have ``row_size`` numbers each and ``limit``
        together."""
        count = self.end - self.start
        step = max(1, limit // max(1, row_size))
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))


class RowMetadata(Protocol):
    """What this attention needs of the metadata of a forward."""

    @property
    def cache(self) -> Any: ...

    @property
    def slots(self) -> Tensor: ...

    def row_groups(self, block_size: int) -> list[RowGroup]:
        """Return the rows that attend together, the same list for all layers."""

    def slot_kernel(self, layer: Any, rank: int) -> SlotKernel | None:
        """Return the device's kernel for latents of this size, read in place; None if it has
        none."""

    def line_kernel(self, layer: Any) -> LineKernel | None:
        """Return the device's kernel for keys and values, read in place; None if it has none."""


def find_layer(metadata: RowMetadata, module: nn.Module) -> FlatLayer | None:
    """Return a module's pages; None while the model is probed."""
    layer: FlatLayer | None = metadata.cache.layers.get(module)
    return layer


def take_tokens(layer: FlatLayer, slots: Tensor) -> Tensor:
    """Return the keys [..., dim] that are stored at ``slots`` [...]."""
    return layer.tokens.index_select(0, slots.flatten()).view(*slots.shape, -1)
