"""Attention on the GPU, in one of four ways for each layer (:class:`Way`).

Our kernel in Triton decodes (``split_decode``); torch's ``varlen_attn`` (Dao, "FlashAttention-2",
2023) computes prompts, over keys and values that are gathered first. Without Triton,
``varlen_attn`` computes everything: since torch 2.12 it accepts a block table, in half precision,
for pages of a multiple of 256 tokens, without a softcap. ``num_splits=1`` makes a row's result
independent of other rows; with more splits, the kernel of torch 2.13 leaves rows of a paged batch
unwritten (pytorch issue 194167). Layers that neither kernel supports run as torch operations over
gathered pages. What an indexer chooses is read in place: latents by ``chosen_latents``, keys and
values by the decode kernel.
"""

import inspect
from collections.abc import Callable
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
from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.compressed.attention import attend_entries
from workers.engine.backends.compressed.compressors import find_compressor
from workers.engine.backends.cuda import launches
from workers.engine.backends.cuda.fusion import active_fusion
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer, Way
from workers.engine.backends.cuda.metadata import PagedMetadata
from workers.engine.backends.sparse.indexers import find_latents, pop_spans
from workers.engine.backends.sparse.latents import attend_latents
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
    if way is Way.LATENTS:
        from workers.engine.backends.cuda import chosen_latents  # needs triton

        return chosen_latents.takes(shape, dtype)
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
    compressor = find_compressor(module)
    rate = None if compressor is None else compressor.rate
    if compressor is not None:  # a key is its own value
        value = value[..., :0]
    heads, cache, fusion = (query, key, value), metadata.cache, active_fusion()
    layer = cache.layers.get(module)  # none while the model is probed
    latents = find_latents(module)
    selection = None if latents is None else options.pop("indices", None)
    spans = pop_spans(options)
    if fusion is not None and layer is not None:
        keeps = bool(metadata.pieces)  # whose rows may attend without the cache
        lines = layer.shape.find_lines(metadata.slots, layer.block_size)
        fusion.store(heads, layer, lines, keeps=keeps)
    rule, query, key, value = take_up(module, heads, attention_mask, options, rate)
    if fusion is None and layer is not None:
        layer.write(metadata.slots, key, value)
    if compressor is not None:
        return attend_entries(query, compressor, metadata, rule)[None], None
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
        launches.split(
            query[:singles],
            layer,
            metadata.block_table[:singles],
            metadata.lengths[:singles],
            metadata.max_k,
            rule,
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
