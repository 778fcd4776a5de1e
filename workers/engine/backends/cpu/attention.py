"""The attention function that every model runs through: it reads and writes the paged KV cache.

Registered with transformers under the name ``ATTENTION``. Transformers builds no mask for a name
that its mask interface does not know, which suits a flat batch: the tokens of a step belong to
many sequences, and the metadata determines which token attends to which.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from workers.engine.backends.base.attention import (
    current_metadata,
    softmax_with_sinks,
    take_up,
    visibility_bias,
)
from workers.engine.backends.base.cache_probe import AttentionRule, CacheProbe
from workers.engine.backends.compressed.attention import attend_entries
from workers.engine.backends.compressed.compressors import find_compressor
from workers.engine.backends.cpu.kv_cache import KVCache, LayerCache
from workers.engine.backends.sparse.indexers import find_latents, pop_spans
from workers.engine.backends.sparse.latents import attend_latents
from workers.engine.backends.sparse.rows import RowGroup
from workers.engine.backends.sparse.span_attention import attend_spans
from workers.engine.core.layer_shape import Visible

ATTENTION = "quire_paged"


@dataclass(slots=True)
class DecodeGroup:
    """Rows ``start`` to ``end`` of the flat batch: one token each of sequences of similar length.

    ``blocks`` [rows, blocks] are their block tables, padded with the null block; ``positions``
    [rows] are the tokens' positions in their sequences.
    """

    start: int
    end: int
    blocks: Tensor
    positions: Tensor
    _derived: dict[Any, Tensor] = field(default_factory=dict)

    def pages(self, layer: LayerCache) -> Tensor:
        """Return the index of these blocks in the layer's head-major pages; the same for equal
        layers."""
        heads = layer.shape.num_kv_heads
        if (index := self._derived.get(heads)) is None:
            index = self._derived[heads] = layer.head_major(self.blocks)
        return index

    def bias(self, layer: LayerCache, visible: Visible, dtype: torch.dtype) -> Tensor:
        """0 where a row attends and -inf elsewhere, [heads * rows, 1, tokens]."""
        heads = layer.shape.num_kv_heads
        if (bias := self._derived.get((heads, visible))) is None:
            length = self.blocks.shape[1] * layer.block_size
            rows = visibility_bias(self.positions, length, visible, dtype)
            bias = self._derived[heads, visible] = rows.repeat(heads, 1)[:, None]
        return bias


@dataclass(slots=True)
class PrefillChunk:
    """Rows ``start`` to ``end`` of the flat batch: consecutive tokens of one sequence, the first
    at ``position``. ``blocks`` [1, blocks] hold the sequence up to the last of them."""

    start: int
    end: int
    position: int
    blocks: Tensor
    _biases: dict[Visible, Tensor] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """The number of the sequence's tokens up to the end of this chunk."""
        return self.position + self.end - self.start

    @property
    def positions(self) -> Tensor:
        """The positions of the tokens in their sequence, [rows]."""
        return torch.arange(self.position, self.length)

    def bias(self, visible: Visible, dtype: torch.dtype) -> Tensor:
        """0 where a row attends and -inf elsewhere, [rows, tokens]; made once for all layers."""
        if (bias := self._biases.get(visible)) is None:
            rows = visibility_bias(self.positions, self.length, visible, dtype)
            bias = self._biases[visible] = rows
        return bias


@dataclass(slots=True)
class AttentionMetadata:
    """Where each token of the flat batch is stored (``slots`` [tokens]) and what it attends to.

    The C forward reads ``tables`` [sequences, blocks] and each token's row in them (``owners``
    [tokens]). The modules read groups and chunks, which say the same; a step in C has none.
    ``run_modules``: a hook reads or changes the values between the model's modules.
    """

    cache: KVCache | CacheProbe
    slots: Tensor
    groups: list[DecodeGroup]
    chunks: list[PrefillChunk]
    tables: Tensor
    owners: Tensor
    run_modules: bool = False
    _rows: list[RowGroup] | None = field(default=None, repr=False)

    def row_groups(self, block_size: int) -> list[RowGroup]:
        """Return the rows that attend together, made once for all layers."""
        if self._rows is None:
            parts: list[DecodeGroup | PrefillChunk] = [*self.groups, *self.chunks]
            self._rows = [
                RowGroup(part.start, part.end, part.blocks, part.positions, block_size)
                for part in parts
            ]
        return self._rows

    def slot_kernel(self, _layer: LayerCache, _rank: int) -> None:
        """A CPU has none."""

    def line_kernel(self, _layer: LayerCache) -> None:
        """A CPU has none."""


def attend_pages(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend over the cache: ``query`` [1, heads, tokens, dim] to [1, tokens, heads, dim].

    ``key`` and ``value`` [1, kv_heads, tokens, dim] are stored first, so that a token reads itself
    and its chunk from the cache, like earlier tokens.
    """
    metadata: AttentionMetadata = current_metadata()
    latents = find_latents(module)
    selection = None if latents is None else options.pop("indices", None)
    spans = pop_spans(options)
    compressor = find_compressor(module)
    rate = None if compressor is None else compressor.rate
    if compressor is not None:  # a key is its own value
        value = value[..., :0]
    rule, query, key, value = take_up(module, (query, key, value), attention_mask, options, rate)
    layer = metadata.cache.layers.get(module)  # none while the model is probed
    if layer is not None:
        layer.write(metadata.slots, key, value)
    if compressor is not None:
        return attend_entries(query, compressor, metadata, rule)[None], None
    if latents is not None:
        return attend_latents(query, latents, layer, metadata, selection, rule)[None], None
    if spans is not None and not spans.is_whole:
        return attend_spans(query, layer, metadata, spans, rule, value.shape[2])[None], None
    output = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
    for group in metadata.groups:
        assert layer is not None
        rows = slice(group.start, group.end)
        _decode(query[rows], group, layer, rule, output[rows])
    for chunk in metadata.chunks:
        rows = slice(chunk.start, chunk.end)
        if chunk.position == 0 or layer is None:
            keys, values = key[rows].transpose(0, 1), value[rows].transpose(0, 1)
        else:
            keys, values = _context(chunk, layer)
        _prefill(query[rows], chunk, (keys, values), rule, output[rows])
    return output[None], None


AttentionInterface.register(ATTENTION, attend_pages)


def _decode(
    query: Tensor, group: DecodeGroup, layer: LayerCache, rule: AttentionRule, output: Tensor
) -> None:
    """One query per sequence, [rows, heads, dim]: the query heads that share a key head are the
    rows of one matrix product per sequence and key head."""
    rows, heads, dim = query.shape
    kv_heads = layer.shape.num_kv_heads
    keys, values = layer.gather(group.pages(layer), rows)
    grouped = query.view(rows, kv_heads, heads // kv_heads, dim).transpose(0, 1)
    grouped = grouped.reshape(kv_heads * rows, heads // kv_heads, dim)
    bias = group.bias(layer, rule.visible, query.dtype)
    if rule.softcap is None:
        scores = torch.baddbmm(bias, grouped, keys.transpose(1, 2), alpha=rule.scale)
    else:
        scores = _cap(grouped @ keys.transpose(1, 2) * rule.scale, rule.softcap) + bias
    if rule.sinks is None:
        weights = scores.softmax(-1)
    else:
        sinks = rule.sinks.view(kv_heads, 1, -1, 1).expand(-1, rows, -1, -1)
        weights = softmax_with_sinks(scores, sinks.reshape(kv_heads * rows, -1, 1))
    mixed = torch.bmm(weights, values)
    output.view(rows, kv_heads, heads // kv_heads, -1).copy_(
        mixed.view(kv_heads, rows, heads // kv_heads, -1).transpose(0, 1)
    )


def _context(chunk: PrefillChunk, layer: LayerCache) -> tuple[Tensor, Tensor]:
    """Return all keys and values [kv_heads, tokens, dim] up to the chunk's last token."""
    keys, values = layer.gather(layer.head_major(chunk.blocks), 1)
    return keys[:, : chunk.length], values[:, : chunk.length]


def _prefill(
    query: Tensor,
    chunk: PrefillChunk,
    context: tuple[Tensor, Tensor],
    rule: AttentionRule,
    output: Tensor,
) -> None:
    """The tokens of one chunk, [tokens, heads, dim], over their sequence so far."""
    keys, values = context
    query = query.transpose(0, 1)
    if rule.softcap is not None or rule.sinks is not None:
        output.copy_(_prefill_plainly(query, chunk, context, rule).transpose(0, 1))
        return
    whole = chunk.position == 0 and rule.visible.sees_all(chunk.length)
    mixed = scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        attn_mask=None if whole else chunk.bias(rule.visible, query.dtype),
        is_causal=whole,
        scale=rule.scale,
        enable_gqa=query.shape[0] != keys.shape[0],
    )
    output.copy_(mixed[0].transpose(0, 1))


def _prefill_plainly(
    query: Tensor, chunk: PrefillChunk, context: tuple[Tensor, Tensor], rule: AttentionRule
) -> Tensor:
    """Attention with the softcap of Gemma 2 (Gemma Team, 2024, section 2) or with sinks; fused
    kernels support neither."""
    keys, values = (x.repeat_interleave(query.shape[0] // x.shape[0], 0) for x in context)
    scores = query @ keys.transpose(1, 2) * rule.scale
    if rule.softcap is not None:
        scores = _cap(scores, rule.softcap)
    scores = scores + chunk.bias(rule.visible, query.dtype)
    if rule.sinks is None:
        return scores.softmax(-1) @ values
    return softmax_with_sinks(scores, rule.sinks[:, None, None]) @ values


def _cap(scores: Tensor, softcap: float) -> Tensor:
    return torch.tanh(scores / softcap) * softcap
