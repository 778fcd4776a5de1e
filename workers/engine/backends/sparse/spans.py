"""Which spans of tokens each row attends to (MiniMax M3).

Sequences are cut into spans of so many successive tokens, which transformers calls blocks. Each
head of an indexer scores all tokens, and a span by the best of its tokens; a group of query heads
attends to the best spans, among which the nearest ones always are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workers.engine.backends.sparse.rows import FlatLayer, RowGroup, take_tokens
from workers.engine.backends.sparse.selection import pick
from workers.engine.core.layer_shape import EVERYTHING

_SCORED = 2**24
"""Scores of an indexer's heads that are in memory at once."""


@dataclass(frozen=True, slots=True)
class SpanRule:
    """Spans of ``size`` tokens, of which ``count`` are chosen: the ``nearest`` up to the row's own,
    and the best of the others."""

    size: int
    count: int
    nearest: int


@dataclass(frozen=True, slots=True)
class SpanSelection:
    """The spans of ``size`` tokens that the rows of a flat batch attend to: of each group, their
    numbers [rows, heads of the indexer, chosen], or None if all are chosen. A span may have tokens
    that are hidden from the row."""

    size: int
    chosen: list[Tensor | None]

    @property
    def is_whole(self) -> bool:
        """Whether all spans of all rows are chosen."""
        return bool(self.chosen) and all(each is None for each in self.chosen)


def choose_spans(
    query: Tensor, layer: FlatLayer, groups: list[RowGroup], rule: SpanRule
) -> SpanSelection:
    """Choose spans for each row: ``query`` [tokens, heads, dim], over the index keys in
    ``layer``."""
    return SpanSelection(rule.size, [_choose(query, layer, group, rule) for group in groups])


def _choose(query: Tensor, layer: FlatLayer, group: RowGroup, rule: SpanRule) -> Tensor | None:
    num_spans = -(-group.width // rule.size)
    if num_spans <= rule.count:
        return None
    query = query[group.start : group.end].float()
    hidden = group.hidden(EVERYTHING)
    shared = take_tokens(layer, group.slots[0]).float() if len(group.blocks) == 1 else None
    own = group.positions.long() // rule.size
    back = torch.arange(rule.nearest, device=own.device)
    nearest = (own[:, None] - back).clamp_(min=0)[:, None].expand(-1, query.shape[1], -1)
    chosen = []
    for rows in group.cut(query.shape[1] * group.width, _SCORED):
        keys = take_tokens(layer, group.slots[rows]).float() if shared is None else shared
        products = query[rows] @ keys.transpose(-1, -2)
        products.masked_fill_(hidden[rows, None], -torch.inf)
        products = pad(products, (0, num_spans * rule.size - group.width), value=-torch.inf)
        best = products.view(*products.shape[:2], num_spans, rule.size).amax(3)
        best.scatter_(2, nearest[rows], torch.inf)
        chosen.append(pick(best.flatten(0, 1), rule.count).view(*best.shape[:2], -1))
    return torch.cat(chosen)
