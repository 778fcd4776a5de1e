"""Multi-head latent attention without expanding what is cached (DeepSeek-AI, "DeepSeek-V2", 2024,
section 2.1).

A layer caches one latent per token and a rotated part of the key, which all heads share. A head's
key is a product of the latent with a matrix. So a query times this matrix, once, attends to latents
as to keys; the mixture of latents times another matrix is the head's output.
"""

from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.backends.base.attention import is_over_pages, softmax_with_sinks
from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.sparse.rows import (
    FlatLayer,
    RowGroup,
    RowMetadata,
    SlotKernel,
    take_tokens,
)
from workers.engine.backends.sparse.selection import Selection
from workers.engine.exceptions import UnsupportedModel

_TOGETHER = 2**24
"""Numbers of scores, and of gathered latents, that are in memory at once."""
_DENSE = 2
"""Up to so many times the chosen tokens, rows of one sequence attend faster to all of its tokens,
with the others hidden, than to copies of those that each has chosen."""


class Latents:
    """Stands for the function of an attention layer that expands cached latents to keys and values.
    In a forward over pages, a key is a latent and the rotated part, and there is no value."""

    def __init__(self, attention: Any) -> None:
        self._up: nn.Linear = attention.kv_b_proj
        self._own = attention.expand_kv
        self._head_dim: int = attention.qk_nope_head_dim + attention.v_head_dim
        self.rank: int = self._up.in_features
        self.key_dim: int = attention.qk_nope_head_dim
        self._converted: tuple[Tensor, Tensor] | None = None
        """The weight that was converted last, and its conversion."""

    def __call__(self, latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
        if not is_over_pages():
            own: tuple[Tensor, Tensor] = self._own(latent, rotated)
            return own
        return torch.cat([latent, rotated], dim=-1), latent[..., :0]

    def matrices(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what makes keys [heads, key_dim, rank] and values [heads, value_dim, rank] of
        latents. Raises UnsupportedModel for a weight that was rounded."""
        weight = self._up.weight
        if weight.is_meta:
            raise UnsupportedModel(
                'attention over latents reads its weights in 16 bits: set dtype = "bfloat16"'
            )
        if weight.dtype != dtype:
            if self._converted is None or self._converted[0] is not weight:
                self._converted = weight, weight.detach().to(dtype)
            weight = self._converted[1]
        of_heads = weight.view(-1, self._head_dim, self.rank)
        return of_heads[:, : self.key_dim], of_heads[:, self.key_dim :]


def attend_latents(
    query: Tensor,
    latents: Latents,
    layer: FlatLayer | None,
    metadata: RowMetadata,
    selection: Selection | None,
    rule: AttentionRule,
) -> Tensor:
    """Attend with ``query`` [tokens, heads, dim] over the latents in ``layer``, to those that are
    selected if there is a selection. Returns [tokens, heads, value_dim]; zeros without a layer,
    which a probe lacks. Raises UnsupportedModel."""
    if rule.softcap is not None:
        raise UnsupportedModel("attention over latents does not cap scores")
    # A CPU may multiply 16-bit numbers slowly, and gathers them first in any case.
    dtype = torch.float32 if query.device.type == "cpu" else query.dtype
    make_keys, make_values = latents.matrices(dtype)
    if layer is None:
        return query.new_zeros(*query.shape[:2], make_values.shape[1])
    plain = query[..., : latents.key_dim].transpose(0, 1).to(dtype)
    rotated = query[..., latents.key_dim :].to(dtype)
    absorbed = torch.cat([(plain @ make_keys).transpose(0, 1), rotated], dim=-1)
    mixed = absorbed.new_empty(*query.shape[:2], latents.rank)
    kernel = metadata.slot_kernel(layer, latents.rank)
    for i, group in enumerate(metadata.row_groups(layer.block_size)):
        places = None if selection is None else selection.places[i]
        rows = slice(group.start, group.end)
        if kernel is None or _is_dense(group, places):
            _attend(absorbed[rows], layer, group, places, rule, mixed[rows])
        else:
            _attend_in_place(kernel, absorbed[rows], group, places, rule, mixed[rows])
    return (mixed.transpose(0, 1) @ make_values.transpose(1, 2)).transpose(0, 1).to(query.dtype)


def _is_dense(group: RowGroup, places: Tensor | None) -> bool:
    """Return whether the rows of a group attend to the same tokens, with some of them hidden."""
    if len(group.blocks) > 1:
        return False
    return places is None or group.width <= _DENSE * places.shape[1]


def _attend_in_place(
    kernel: SlotKernel,
    query: Tensor,
    group: RowGroup,
    places: Tensor | None,
    rule: AttentionRule,
    output: Tensor,
) -> None:
    """Fill ``output`` [rows, heads, rank] of one group, without copies of what rows attend to."""
    if places is None:
        hidden = group.hidden(rule.visible)
        output.copy_(kernel(query, group.slots.masked_fill(hidden, -1), rule))
        return
    for rows in group.cut(places.shape[1], _TOGETHER):
        hidden = rule.visible.hides(group.positions[rows].long()[:, None], places[rows])
        slots = group.find_slots(places[rows], rows).masked_fill(hidden, -1)
        output[rows] = kernel(query[rows], slots, rule)


def _attend(
    query: Tensor,
    layer: FlatLayer,
    group: RowGroup,
    places: Tensor | None,
    rule: AttentionRule,
    output: Tensor,
) -> None:
    """Fill ``output`` [rows, heads, rank] of one group, whose rows attend to ``places``
    [rows, chosen] of their sequences, or to all tokens that are visible."""
    is_shared = len(group.blocks) == 1
    if places is not None and not _is_dense(group, places):
        _attend_chosen(query, layer, group, places, rule, output)
        return
    hidden = group.hidden(rule.visible)
    if places is not None:
        hidden = hidden | torch.ones_like(hidden).scatter_(1, places, value=False)
    shared = take_tokens(layer, group.slots[0]).to(query.dtype) if is_shared else None
    width = group.width * (query.shape[1] + (0 if is_shared else query.shape[2]))
    for rows in group.cut(width, _TOGETHER):
        keys = take_tokens(layer, group.slots[rows]).to(query.dtype) if shared is None else shared
        mix(query[rows], keys, hidden[rows], rule, output[rows])


def _attend_chosen(
    query: Tensor,
    layer: FlatLayer,
    group: RowGroup,
    places: Tensor,
    rule: AttentionRule,
    output: Tensor,
) -> None:
    for rows in group.cut(places.shape[1] * sum(query.shape[1:]), _TOGETHER):
        keys = take_tokens(layer, group.find_slots(places[rows], rows)).to(query.dtype)
        hidden = rule.visible.hides(group.positions[rows].long()[:, None], places[rows])
        mix(query[rows], keys, hidden, rule, output[rows])


def mix(query: Tensor, keys: Tensor, hidden: Tensor, rule: AttentionRule, output: Tensor) -> None:
    """Fill ``output`` [rows, heads, rank] from ``keys`` [rows, tokens, dim] or, shared by all rows,
    [tokens, dim], which begin with the latents."""
    rank = output.shape[2]
    if keys.dim() == 2:
        scores = (query.flatten(0, 1) @ keys.T).view(*query.shape[:2], -1)
    else:
        scores = query @ keys.transpose(1, 2)
    scores = scores.float().mul_(rule.scale).masked_fill_(hidden[:, None], -torch.inf)
    if rule.sinks is None:
        weights = scores.softmax(-1).to(query.dtype)
    else:
        weights = softmax_with_sinks(scores, rule.sinks[:, None]).to(query.dtype)
    if keys.dim() == 2:
        output.copy_((weights.flatten(0, 1) @ keys[:, :rank]).view_as(output))
    else:
        output.copy_(weights @ keys[..., :rank])
