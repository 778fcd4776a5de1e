"""Attention on the GPU, in one of three ways for each layer (:class:`Way`).

Our kernel in Triton decodes (``split_decode``); torch's ``varlen_attn`` (Dao, "FlashAttention-2",
2023) computes prompts, over keys and values that are gathered first. Without Triton,
``varlen_attn`` computes everything: since torch 2.12 it accepts a block table, in half precision,
for pages of a multiple of 256 tokens, without a softcap. ``num_splits=1`` makes a row's result
independent of other rows; with more splits, the kernel of torch 2.13 leaves rows of a paged batch
unwritten (pytorch issue 194167). Layers that neither kernel supports run as torch operations over
gathered pages.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from workers.engine.backends.base.attention import (
    current_metadata,
    softmax_with_sinks,
    take_up,
    visibility_bias,
)
from workers.engine.backends.base.cache_probe import AttentionRule, CacheProbe
from workers.engine.backends.cuda.fusion import active_fusion
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, TokenMajorLayer, Way
from workers.engine.backends.sparse.indexers import find_latents, pop_spans
from workers.engine.backends.sparse.latents import attend_latents
from workers.engine.backends.sparse.rows import RowGroup
from workers.engine.backends.sparse.span_attention import attend_spans
from workers.engine.core.layer_shape import LayerShape

ATTENTION = "quire_paged_cuda"

KERNEL_BLOCK_SIZE = 256
"""The kernel needs pages whose size in tokens is a multiple of this."""

_MAX_HEAD_DIM = 256

_GATHERED = 32768
"""Tokens of several contexts to gather at once, which bounds the memory that a step needs beyond
the one that is measured at start. A context that is longer is gathered by itself."""


def find_kernel(*wanted: str) -> Callable[..., Any] | None:
    """torch's ``varlen_attn``, if this torch has it with these parameters."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if set(wanted) <= set(inspect.signature(varlen_attn).parameters) else None


_kernel = find_kernel("window_size")
_names_groups = find_kernel("window_size", "enable_gqa") is not None
"""Before 2.12, torch shares keys between heads unasked."""
_has_block_table = find_kernel("window_size", "enable_gqa", "block_table") is not None


@dataclass(frozen=True, slots=True)
class SequencePiece:
    """Rows ``start`` to ``end`` of a flat batch: consecutive tokens of one sequence. The last one
    is the sequence's ``length``-th token; the sequence fills ``num_blocks`` of its block table."""

    start: int
    end: int
    length: int
    num_blocks: int


@dataclass(slots=True)
class PagedMetadata:
    """Where each token of the flat batch is stored (``slots`` [tokens]) and what it attends to.

    Each of n sequences has consecutive tokens, delimited by ``cu_seq_q`` [n + 1]; sequences with
    one token come first. ``lengths`` [n] are the sequence lengths up to their last token,
    ``block_table`` [n, blocks] is padded with the null block. The kernel requires ``cu_seq_k``
    [n + 1] but ignores it where there is a block table. ``max_k`` bounds ``lengths``.

    ``num_singles`` and ``pieces`` are the same layout on the host, for attention without the
    kernel: first ``num_singles`` sequences of one token, then ``pieces``.
    """

    cache: TokenMajorCache | CacheProbe
    slots: Tensor
    cu_seq_q: Tensor
    cu_seq_k: Tensor
    lengths: Tensor
    block_table: Tensor
    max_q: int
    max_k: int
    num_singles: int
    pieces: list[SequencePiece]
    _context: "Context | None" = field(default=None, repr=False)
    _rows: list[RowGroup] | None = field(default=None, repr=False)

    def row_groups(self, block_size: int) -> list[RowGroup]:
        """Return the rows that attend together, made once for all layers."""
        if self._rows is None:
            singles, self._rows = self.num_singles, []
            if singles:
                blocks, positions = self.block_table[:singles], self.lengths[:singles] - 1
                self._rows.append(RowGroup(0, singles, blocks, positions, block_size))
            for row, piece in enumerate(self.pieces, start=singles):
                blocks = self.block_table[row : row + 1, : piece.num_blocks]
                first = piece.length - (piece.end - piece.start)
                positions = torch.arange(first, piece.length, device=self.slots.device)
                self._rows.append(RowGroup(piece.start, piece.end, blocks, positions, block_size))
        return self._rows

    def context(self, block_size: int) -> "Context":
        """Return what the pieces attend to; made once for all layers, without waiting for the
        device."""
        if self._context is None:
            self._context = Context.gather(self, block_size)
        return self._context


class Context(NamedTuple):
    """The sequences of the pieces, one after the other: their ``slots`` [tokens] in the cache.

    ``cu_seq_q`` and ``cu_seq_k`` [n + 1] say where each begins among the pieces' tokens and among
    ``slots``; ``max_q`` and ``max_k`` bound their lengths. ``is_own``: the pieces are whole
    sequences, whose keys and values need not be read from the cache.
    """

    slots: Tensor
    cu_seq_q: Tensor
    cu_seq_k: Tensor
    max_q: int
    max_k: int
    is_own: bool

    @classmethod
    def gather(cls, metadata: PagedMetadata, block_size: int) -> "Context":
        singles, pieces = metadata.num_singles, metadata.pieces
        lengths = metadata.lengths[singles:]
        ends = lengths.cumsum(0, dtype=torch.int32)
        total = sum(piece.length for piece in pieces)
        owners = torch.repeat_interleave(lengths, output_size=total)
        places = torch.arange(total, device=lengths.device) - (ends - lengths)[owners]
        blocks = metadata.block_table[singles:][owners, places // block_size]
        return cls(
            slots=blocks.long() * block_size + places % block_size,
            cu_seq_q=metadata.cu_seq_q[singles:] - singles,
            cu_seq_k=pad(ends, (1, 0)),
            max_q=max(piece.end - piece.start for piece in pieces),
            max_k=max(piece.length for piece in pieces),
            is_own=all(piece.length == piece.end - piece.start for piece in pieces),
        )


def has_paged_kernel(device: torch.device) -> bool:
    """Return whether this torch and this GPU have FlashAttention over a block table."""
    if not _has_block_table or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def takes(way: Way, shape: LayerShape, dtype: torch.dtype, block_size: int) -> bool:
    """Return whether a layer of this shape can attend in this way, on a device that supports it."""
    if way is Way.FLASH:
        return kernel_takes(shape, dtype, block_size)
    if way is Way.SPLIT:
        from workers.engine.backends.cuda import split_decode  # needs triton

        return split_decode.takes(shape, dtype)
    return True


def kernel_takes(shape: LayerShape, dtype: torch.dtype, block_size: int) -> bool:
    """Return whether ``varlen_attn`` supports such pages, if torch has it."""
    return block_size % KERNEL_BLOCK_SIZE == 0 and _flash_takes(shape, dtype)


def _flash_takes(shape: LayerShape, dtype: torch.dtype) -> bool:
    return (
        dtype in (torch.bfloat16, torch.float16)
        and shape.key_dim == shape.value_dim
        and shape.key_dim % 8 == 0
        and shape.key_dim <= _MAX_HEAD_DIM
        and shape.visible.chunk is None
        and not shape.has_sinks
        and not shape.is_capped
    )


def attend_pages_on_gpu(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend over the cache: ``query`` [1, heads, tokens, dim] to [1, tokens, heads, dim].

    Stores ``key`` and ``value`` [1, kv_heads, tokens, dim] first, so that a token reads its own
    chunk like earlier tokens.
    """
    metadata: PagedMetadata = current_metadata()
    heads, cache, fusion = (query, key, value), metadata.cache, active_fusion()
    layer = cache.layers.get(module)  # none while the model is probed
    latents = find_latents(module)
    selection = None if latents is None else options.pop("indices", None)
    spans = pop_spans(options)
    if fusion is not None and layer is not None:
        keeps = bool(metadata.pieces)  # whose rows may attend without the cache
        fusion.store(heads, layer, metadata.slots, keeps=keeps)
    rule, query, key, value = take_up(module, heads, attention_mask, options)
    if fusion is None and layer is not None:
        layer.write(metadata.slots, key, value)
    if latents is not None:
        return attend_latents(query, latents, layer, metadata, selection, rule)[None], None
    if spans is not None and not spans.is_whole:
        return attend_spans(query, layer, metadata, spans, rule, value.shape[2])[None], None
    if layer is None:
        return query.new_zeros(1, *query.shape[:2], value.shape[2]), None
    if layer.way is Way.FLASH:
        return attend_paged(query, layer, metadata, rule)[None], None
    if layer.way is Way.SPLIT:
        return attend_split(query, (key, value), layer, metadata, rule)[None], None
    return attend_gathered(query, layer, metadata, rule)[None], None


AttentionInterface.register(ATTENTION, attend_pages_on_gpu)


def attend_paged(
    query: Tensor, layer: TokenMajorLayer, metadata: PagedMetadata, rule: AttentionRule
) -> Tensor:
    """Compute all rows [tokens, heads, dim] by one kernel that reads the pages in place."""
    if rule.visible.window is not None:
        window = (rule.visible.window - 1, 0)
    else:
        # A single query is its sequence's last token, so nothing needs a mask. Only an unmasked
        # call lets the kernel share keys between the heads of a group.
        window = (-1, 0) if metadata.max_q > 1 else (-1, -1)
    assert _kernel is not None
    output: Tensor = _kernel(
        query,
        layer.key,
        layer.value,
        metadata.cu_seq_q,
        metadata.cu_seq_k,
        metadata.max_q,
        metadata.max_k,
        scale=rule.scale,
        window_size=window,
        enable_gqa=query.shape[1] != layer.shape.num_kv_heads,
        seqused_k=metadata.lengths,
        block_table=metadata.block_table,
        num_splits=1,
    )
    return output


def attend_split(
    query: Tensor,
    own: tuple[Tensor, Tensor],
    layer: TokenMajorLayer,
    metadata: PagedMetadata,
    rule: AttentionRule,
) -> Tensor:
    """Compute all rows [tokens, heads, dim]: sequences with one token by the kernel that splits
    contexts, the rest over gathered pages. ``own`` holds the keys and values of the batch's
    tokens."""
    singles = metadata.num_singles
    decoded = (
        _split(
            query[:singles],
            layer,
            metadata.block_table[:singles],
            metadata.lengths[:singles],
            metadata.max_k,
            rule,
            _processors(query.device),
        )
        if singles
        else None
    )
    if decoded is not None and not metadata.pieces:
        return decoded
    output = query.new_empty(*query.shape[:2], layer.shape.value_dim)
    if decoded is not None:
        output[:singles] = decoded
    if _kernel is not None and _flash_takes(layer.shape, query.dtype):
        output[singles:] = _prefill(query[singles:], own, layer, metadata, rule)
    else:
        _attend_pieces(query, output, layer, metadata, rule)
    return output


def _split(*args: Any) -> Tensor:
    from workers.engine.backends.cuda import split_decode  # needs triton

    return split_decode.attend(*args)


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of the GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def _prefill(
    query: Tensor,
    own: tuple[Tensor, Tensor],
    layer: TokenMajorLayer,
    metadata: PagedMetadata,
    rule: AttentionRule,
) -> Tensor:
    """Compute the pieces' rows [tokens, heads, dim] by one call of the kernel, over their
    sequences."""
    context = metadata.context(layer.key.shape[1])
    if context.is_own:
        keys, values = (x[metadata.num_singles :].contiguous() for x in own)
    else:
        pages = (layer.key, layer.value)
        keys, values = (x.flatten(0, 1).index_select(0, context.slots) for x in pages)
    window = -1 if rule.visible.window is None else rule.visible.window - 1
    assert _kernel is not None
    output: Tensor = _kernel(
        query,
        keys,
        values,
        context.cu_seq_q,
        context.cu_seq_k,
        context.max_q,
        context.max_k,
        scale=rule.scale,
        window_size=(window, 0),
        **({"enable_gqa": query.shape[1] != layer.shape.num_kv_heads} if _names_groups else {}),
    )
    return output


def attend_gathered(
    query: Tensor, layer: TokenMajorLayer, metadata: PagedMetadata, rule: AttentionRule
) -> Tensor:
    """Compute all rows [tokens, heads, dim]: sequences with one token in few calls, the rest one by
    one."""
    tokens, heads, _ = query.shape
    output = query.new_empty(tokens, heads, layer.shape.value_dim)
    singles = metadata.num_singles
    together = max(1, _GATHERED // (metadata.block_table.shape[1] * layer.key.shape[1]))
    for begin in range(0, singles, together):
        rows = slice(begin, min(begin + together, singles))
        context = layer.gather(metadata.block_table[rows])
        positions = metadata.lengths[rows, None] - 1
        output[rows] = _attend(query[rows, :, None], context, positions, rule)[:, :, 0]
    _attend_pieces(query, output, layer, metadata, rule)
    return output


def _attend_pieces(
    query: Tensor,
    output: Tensor,
    layer: TokenMajorLayer,
    metadata: PagedMetadata,
    rule: AttentionRule,
) -> None:
    """Fill the pieces' rows of ``output``, one piece after the other."""
    singles = metadata.num_singles
    for row, piece in enumerate(metadata.pieces, start=singles):
        context = layer.gather(metadata.block_table[row : row + 1, : piece.num_blocks])
        first = piece.length - (piece.end - piece.start)
        positions = torch.arange(first, piece.length, device=query.device)[None]
        rows = query[piece.start : piece.end].transpose(0, 1)[None]
        output[piece.start : piece.end] = _attend(rows, context, positions, rule)[0].transpose(0, 1)


def _attend(
    query: Tensor, context: tuple[Tensor, Tensor], positions: Tensor, rule: AttentionRule
) -> Tensor:
    """``query`` [rows, heads, q, dim] at ``positions`` [rows, q] over ``context``, keys and values
    [rows, kv_heads, tokens, dim] from the sequence's first token on."""
    keys, values = context
    bias = visibility_bias(positions, keys.shape[2], rule.visible, query.dtype)[:, None]
    shared = query.shape[1] // keys.shape[1]
    if rule.softcap is None and rule.sinks is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=bias, scale=rule.scale, enable_gqa=shared > 1
        )
    # Fused kernels support neither sinks nor the softcap of Gemma 2 (Gemma Team, 2024, section 2).
    keys, values = (x.repeat_interleave(shared, 1) for x in context)
    scores = query @ keys.transpose(2, 3) * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if rule.sinks is None:
        return (scores + bias).softmax(-1) @ values
    return softmax_with_sinks(scores + bias, rule.sinks[:, None, None]) @ values
