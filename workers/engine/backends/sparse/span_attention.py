"""Attention to chosen spans of tokens, over keys and values of several heads in the paged cache."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.sparse.rows import LineKernel, RowGroup, RowMetadata
from workers.engine.backends.sparse.spans import SpanSelection
from workers.engine.core.layer_shape import LayerShape
from workers.engine.exceptions import UnsupportedModel

_TOGETHER = 2**24
"""Numbers of scores, and of gathered keys and values, that are in memory at once."""
_DENSE = 2
"""Up to so many times the chosen tokens, rows of one sequence attend to all of its tokens, with the
others hidden, instead of to copies of those that each has chosen."""


class LinedLayer(Protocol):
    """A layer's pages, as lines: one for each token and head."""

    shape: LayerShape
    block_size: int

    @property
    def lines(self) -> tuple[Tensor, Tensor]:
        """The keys and the values, [lines, dim]."""

    def find_lines(self, slots: Tensor, heads: Tensor) -> Tensor:
        """Return the lines of the tokens at ``slots`` for ``heads``, which broadcast."""


class _Spans(NamedTuple):
    """The spans of ``size`` tokens that each row has chosen: ``numbers`` [rows, choices, n]."""

    numbers: Tensor
    size: int

    def cut(self, rows: slice) -> "_Spans":
        return _Spans(self.numbers[rows], self.size)

    @property
    def places(self) -> Tensor:
        """Their tokens in the sequences, [rows, choices, tokens]."""
        within = torch.arange(self.size, device=self.numbers.device)
        return (self.numbers[..., None] * self.size + within).flatten(2)

    def leave_out(self, width: int) -> Tensor:
        """Return whether each of the first ``width`` tokens of a sequence is in none of them,
        [rows, choices, width]."""
        rows, choices, _ = self.numbers.shape
        shape = (rows, choices, -(-width // self.size))
        left = torch.ones(shape, dtype=torch.bool, device=self.numbers.device)
        left.scatter_(2, self.numbers, value=False)
        return left.repeat_interleave(self.size, dim=2)[..., :width]


def attend_spans(
    query: Tensor,
    layer: LinedLayer | None,
    metadata: RowMetadata,
    selection: SpanSelection,
    rule: AttentionRule,
    value_dim: int,
) -> Tensor:
    """Attend with ``query`` [tokens, heads, dim] over the keys and values in ``layer``, to the
    spans that are selected. Returns [tokens, heads, value_dim]; zeros without a layer, which a
    probe lacks. Raises UnsupportedModel."""
    if rule.softcap is not None or rule.sinks is not None:
        raise UnsupportedModel("attention to spans neither caps scores nor has sinks")
    if layer is None:
        return query.new_zeros(*query.shape[:2], value_dim)
    # A CPU may multiply 16-bit numbers slowly, and gathers them first in any case.
    dtype = torch.float32 if query.device.type == "cpu" else query.dtype
    output = query.new_empty(*query.shape[:2], value_dim, dtype=dtype)
    kernel = metadata.line_kernel(layer)
    for group, numbers in zip(metadata.row_groups(layer.block_size), selection.chosen, strict=True):
        if numbers is None:
            every = torch.arange(-(-group.width // selection.size), device=query.device)
            numbers = every.expand(group.end - group.start, 1, -1)
        spans = _Spans(numbers, selection.size)
        rows = slice(group.start, group.end)
        grouped = _group_heads(query[rows].to(dtype), layer, numbers.shape[1])
        if _is_dense(group, spans):
            _attend_all(grouped, layer, group, spans, rule, output[rows])
        elif kernel is None:
            _attend_chosen(grouped, layer, group, spans, rule, output[rows])
        else:
            output[rows] = _attend_in_place(kernel, grouped, layer, group, spans, rule)
    return output.to(query.dtype)


def _group_heads(query: Tensor, layer: LinedLayer, choices: int) -> Tensor:
    """Return the query heads [rows, parts, heads, dim] in parts, which share both a key head and a
    choice."""
    parts = max(choices, layer.shape.num_kv_heads)
    if parts % choices or parts % layer.shape.num_kv_heads or query.shape[1] % parts:
        raise UnsupportedModel("an indexer chooses for heads that share no keys")
    return query.view(len(query), parts, -1, query.shape[2])


def _is_dense(group: RowGroup, spans: _Spans) -> bool:
    return len(group.blocks) == 1 and group.width <= _DENSE * spans.numbers.shape[2] * spans.size


def _key_heads(layer: LinedLayer, parts: int) -> Tensor:
    """Return the key head of each part, [parts, 1]."""
    heads = layer.shape.num_kv_heads
    return torch.arange(parts, device=layer.lines[0].device)[:, None] * heads // parts


def _attend_all(
    query: Tensor,
    layer: LinedLayer,
    group: RowGroup,
    spans: _Spans,
    rule: AttentionRule,
    output: Tensor,
) -> None:
    """Fill ``output`` [rows, heads, value_dim] of rows of one sequence, from all of its tokens."""
    lines = layer.find_lines(group.slots, _key_heads(layer, query.shape[1]))
    keys, values = (pages[lines].to(query.dtype) for pages in layer.lines)
    unseen = group.hidden(rule.visible)[:, None]
    for rows in group.cut(output.shape[1] * group.width, _TOGETHER):
        hidden = unseen[rows] | spans.cut(rows).leave_out(group.width)
        _mix(query[rows], keys, values, hidden, rule, output[rows])


def _attend_chosen(
    query: Tensor,
    layer: LinedLayer,
    group: RowGroup,
    spans: _Spans,
    rule: AttentionRule,
    output: Tensor,
) -> None:
    """Fill ``output`` [rows, heads, value_dim] from copies of what each row has chosen."""
    parts = query.shape[1]
    tokens = parts * spans.numbers.shape[2] * spans.size
    for rows in group.cut(tokens * (query.shape[3] + output.shape[2]), _TOGETHER):
        places = spans.cut(rows).places
        hidden = rule.visible.hides(group.positions[rows].long()[:, None, None], places)
        lines = _find_lines(layer, group, places, rows, parts)
        keys, values = (pages[lines].to(query.dtype) for pages in layer.lines)
        _mix(query[rows], keys, values, hidden, rule, output[rows])


def _attend_in_place(
    kernel: LineKernel,
    query: Tensor,
    layer: LinedLayer,
    group: RowGroup,
    spans: _Spans,
    rule: AttentionRule,
) -> Tensor:
    """Return the output [rows, heads, value_dim] of rows that see everything before them, without
    copies: each part of a row is a row of its own."""
    parts = query.shape[1]
    # In order, so that the visible tokens are the first ones.
    ordered = _Spans(spans.numbers.sort(dim=2).values, spans.size)
    output = []
    for rows in group.cut(parts * spans.numbers.shape[2] * spans.size, _TOGETHER):
        places = ordered.cut(rows).places
        seen = (places <= group.positions[rows].long()[:, None, None]).sum(2, keepdim=True)
        lines = _find_lines(layer, group, places, rows, parts).flatten(0, 1)
        seen = _of_parts(seen, parts).flatten()
        output.append(kernel(query[rows].flatten(0, 1), lines.int(), seen.int(), rule))
    return torch.cat(output).view(len(query), -1, layer.shape.value_dim)


def _find_lines(
    layer: LinedLayer, group: RowGroup, places: Tensor, rows: slice, parts: int
) -> Tensor:
    """Return the lines of the tokens at ``places`` [rows, choices, n], [rows, parts, n]."""
    # The last span may end after the last block.
    inside = places.clamp(max=group.width - 1).flatten(1)
    slots = group.find_slots(inside, rows).view_as(places)
    return layer.find_lines(_of_parts(slots, parts), _key_heads(layer, parts))


def _of_parts(choices: Tensor, parts: int) -> Tensor:
    """Return what belongs to each part of ``choices`` [rows, choices, n]."""
    return choices.repeat_interleave(parts // choices.shape[1], dim=1)


def _mix(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, rule: AttentionRule, output: Tensor
) -> None:
    """Fill ``output`` [rows, heads, value_dim] from ``query`` [rows, parts, heads, dim], keys and
    values [(rows,) parts, tokens, dim], and what is hidden, [rows, choices, tokens]."""
    scores = _multiply(query, keys.transpose(-1, -2)).float() * rule.scale
    scores.masked_fill_(_of_parts(hidden, query.shape[1])[:, :, None], -torch.inf)
    output.copy_(_multiply(scores.softmax(-1).to(query.dtype), values).flatten(1, 2))


def _multiply(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return the product of ``rows`` [rows, parts, heads, n] with matrices [rows, parts, n, m] or,
    shared by all rows, [parts, n, m], of which it makes no copies."""
    if matrices.dim() == 4:
        return rows @ matrices
    count, parts, heads, _ = rows.shape
    product = rows.transpose(0, 1).flatten(1, 2) @ matrices
    return product.view(parts, count, heads, -1).transpose(0, 1)
