"""Which tokens each row attends to: the best by an indexer's scores ("DeepSeek-V3.2", 2025)."""

import torch
from torch import Tensor

from workers.engine.backends.sparse.rows import FlatLayer, RowGroup, take_tokens
from workers.engine.core.layer_shape import EVERYTHING

_SCORED = 2**24
"""Products of an indexer's heads that are in memory at once."""


class Selection:
    """The tokens that the rows of a flat batch attend to: of each group, their ``places``
    [rows, chosen] in the sequences, or None if all that are visible are chosen."""

    def __init__(self, places: list[Tensor | None]) -> None:
        self.places = places


def choose_tokens(
    query: Tensor, weights: Tensor, layer: FlatLayer, groups: list[RowGroup], count: int
) -> Selection:
    """Choose ``count`` tokens for each row: ``query`` [tokens, heads, dim] and the weights of the
    heads [tokens, heads], over the index keys in ``layer``."""
    return Selection([_choose(query, weights, layer, group, count) for group in groups])


def _choose(
    query: Tensor, weights: Tensor, layer: FlatLayer, group: RowGroup, count: int
) -> Tensor | None:
    if group.width <= count:
        return None
    of_group = slice(group.start, group.end)
    query, weights = query[of_group].float(), weights[of_group].float()
    hidden = group.hidden(EVERYTHING)
    shared = take_tokens(layer, group.slots[0]).float() if len(group.blocks) == 1 else None
    places = []
    for rows in group.cut(query.shape[1] * group.width, _SCORED):
        keys = take_tokens(layer, group.slots[rows]).float() if shared is None else shared
        scores = _score(query[rows], weights[rows], keys)
        places.append(pick(scores.masked_fill_(hidden[rows], -torch.inf), count))
    return torch.cat(places)


def _score(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Return the sum over heads of a weight and the positive part of a product, [rows, tokens]:
    ``keys`` are [rows, tokens, dim] or, shared by all rows, [tokens, dim]."""
    if keys.dim() == 2:
        products = (query.flatten(0, 1) @ keys.T).view(*query.shape[:2], -1)
    else:
        products = query @ keys.transpose(1, 2)
    return (weights[:, None] @ products.relu_())[:, 0]


def pick(scores: Tensor, count: int) -> Tensor:
    """Return the places of the ``count`` highest scores of each row [rows, tokens], in no order. Of
    equal ones, the earlier is higher: so the choice depends on nothing but the row's tokens."""
    bits = (scores + 0.0).view(torch.int32)  # of -0.0, 0.0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    last = scores.shape[1] - 1
    later = torch.arange(last, -1, -1, device=scores.device)
    unique = (rising.long() << 32) | later
    return unique.topk(count, dim=1, sorted=False).indices
