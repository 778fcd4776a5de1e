"""Attention to the nearest tokens and to entries of earlier ones, in one softmax."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.compressed.compressors import EntryLayer, PagedCompressor
from workers.engine.backends.compressed.lines import EntryGroup, find_near
from workers.engine.backends.sparse.latents import mix
from workers.engine.backends.sparse.rows import RowGroup, SlotKernel, take_tokens
from workers.engine.core.layer_shape import EVERYTHING
from workers.engine.exceptions import UnsupportedModel

_TOGETHER = 2**24
"""Numbers of scores, and of gathered keys, that are in memory at once."""
_DENSE = 2
"""Up to so many times the chosen entries, rows of one sequence attend faster to all of its entries,
with the others hidden, than to copies of those that each has chosen."""


def attend_entries(
    query: Tensor, compressor: PagedCompressor, metadata: Any, rule: AttentionRule
) -> Tensor:
    """Attend with ``query`` [tokens, heads, dim] to the tokens that a layer's rule makes visible,
    and to the entries that are chosen, or all that end before. A key is its own value. Returns
    [tokens, heads, dim]; zeros while the model is probed. Raises UnsupportedModel."""
    if rule.softcap is not None or rule.visible.chunk is not None:
        raise UnsupportedModel("attention to entries neither caps scores nor sees chunks")
    layer: EntryLayer | None = metadata.cache.layers.get(compressor.attention)
    if layer is None:
        return torch.zeros_like(query)
    # A CPU may multiply 16-bit numbers slowly, and gathers them first in any case.
    wide = query.float() if query.device.type == "cpu" else query
    output = torch.empty_like(wide)
    kernel = metadata.slot_kernel(layer, query.shape[2])
    groups = metadata.row_groups(layer.block_size)
    for i, entries in enumerate(compressor.entry_groups(metadata)):
        chosen = None if compressor.selection is None else compressor.selection.places[i]
        seen = _Seen(groups[i], entries, chosen)
        rows = slice(entries.start, entries.end)
        if seen.is_dense:
            _attend_together(wide[rows], layer, seen, rule, output[rows])
        else:
            _attend_each(wide[rows], layer, seen, rule, kernel, output[rows])
    return output.to(query.dtype)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a group's rows see: the nearest tokens, and of their entries those that each has
    ``chosen`` [rows, n], or all."""

    group: RowGroup
    entries: EntryGroup
    chosen: Tensor | None

    @property
    def is_dense(self) -> bool:
        """Whether the rows attend to the same keys, with some of them hidden."""
        if len(self.entries.blocks) > 1:
            return False
        return self.chosen is None or self.entries.width <= _DENSE * self.chosen.shape[1]

    def hidden_entries(self) -> Tensor:
        """Return whether an entry is hidden from a row, [rows, entries]."""
        hidden = self.entries.hidden(EVERYTHING)
        if self.chosen is None:
            return hidden
        return hidden | torch.ones_like(hidden).scatter_(1, self.chosen, value=False)

    def own_entries(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the lines of the entries of each row, and which are hidden from it [rows, n]."""
        entries = self.entries
        if self.chosen is None:
            hidden = entries.hidden(EVERYTHING)[rows]
            lines = entries.slots[rows] if len(entries.slots) > 1 else entries.slots
            return lines.expand_as(hidden), hidden
        chosen = self.chosen[rows]
        return entries.find_slots(chosen, rows), chosen > entries.positions[rows, None]


def _attend_together(
    query: Tensor, layer: EntryLayer, seen: _Seen, rule: AttentionRule, output: Tensor
) -> None:
    """Fill ``output`` [rows, heads, dim] of rows of one sequence, from the keys of all of them."""
    near = find_near(seen.group, rule.visible, layer.num_lines, together=True)
    hidden = torch.cat([near.hidden, seen.hidden_entries()], dim=1)
    lines = torch.cat([near.lines, seen.entries.slots[0]])
    keys = take_tokens(layer, lines).to(query.dtype)
    for rows in seen.group.cut(query.shape[1] * len(keys), _TOGETHER):
        mix(query[rows], keys, hidden[rows], rule, output[rows])


def _attend_each(
    query: Tensor,
    layer: EntryLayer,
    seen: _Seen,
    rule: AttentionRule,
    kernel: SlotKernel | None,
    output: Tensor,
) -> None:
    """Fill ``output`` [rows, heads, dim] of rows that attend to keys of their own."""
    near = find_near(seen.group, rule.visible, layer.num_lines, together=False)
    entries = seen.entries.width if seen.chosen is None else seen.chosen.shape[1]
    count = near.lines.shape[1] + entries
    for rows in seen.group.cut(count * sum(query.shape[1:]), _TOGETHER):
        lines, unseen = seen.own_entries(rows)
        lines = torch.cat([near.lines[rows], lines], dim=1)
        hidden = torch.cat([near.hidden[rows], unseen], dim=1)
        if kernel is None:
            keys = take_tokens(layer, lines).to(query.dtype)
            mix(query[rows], keys, hidden, rule, output[rows])
        else:
            output[rows] = kernel(query[rows], lines.masked_fill(hidden, -1), rule)
