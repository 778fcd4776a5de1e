"""Attention on the GPU: FlashAttention over pages if torch has it, else plain torch operations over
gathered pages.

Since torch 2.12, ``varlen_attn`` (Dao, "FlashAttention-2", 2023) accepts a block table, in half
precision, for pages of a multiple of 256 tokens, without a cap on scores. ``num_splits=1`` makes a
row's result independent of other rows; with more splits, the kernel of torch 2.13 leaves rows of a
paged batch unwritten (pytorch issue 194167).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from workers.engine.cuda.kv_cache import TokenMajorCache, TokenMajorLayer
from workers.engine.model.attention import take_up, visibility_bias
from workers.engine.model.kv_cache import AttentionRule, CacheProbe, LayerShape

ATTENTION = "quire_paged_cuda"

KERNEL_BLOCK_SIZE = 256
"""Pages of the kernel hold a multiple of so many tokens."""

_MAX_HEAD_DIM = 256


def _find_kernel() -> Callable[..., Any] | None:
    """torch's ``varlen_attn``, if this torch has it with a block table."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "block_table" in inspect.signature(varlen_attn).parameters else None


_kernel = _find_kernel()


@dataclass(frozen=True, slots=True)
class SequencePiece:
    """Rows ``start`` to ``end`` of a flat batch: consecutive tokens of one sequence, the last of
    which is its ``length``-th; it fills the first ``num_blocks`` of its block table."""

    start: int
    end: int
    length: int
    num_blocks: int


@dataclass(slots=True)
class PagedMetadata:
    """Where each token of the flat batch is stored (``slots`` [tokens]) and what it attends to.

    Each of n sequences brings consecutive tokens, in the order of ``cu_seq_q`` [n + 1]: those
    with one token first. ``lengths`` [n] are the sequences up to their last token,
    ``block_table`` [n, blocks] is padded with the null block. ``cu_seq_k`` [n + 1] is asked for
    by the kernel and not used where there is a block table. ``max_k`` bounds ``lengths``.

    ``num_singles`` and ``pieces`` say the same to the host, for attention without the kernel:
    first that many sequences of one token, then these.
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


def has_paged_kernel(device: torch.device) -> bool:
    """Whether this torch and this GPU have FlashAttention over a block table."""
    if _kernel is None or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def kernel_takes(shape: LayerShape, dtype: torch.dtype, block_size: int) -> bool:
    """Whether the kernel supports such pages, if torch has it."""
    return (
        dtype in (torch.bfloat16, torch.float16)
        and block_size % KERNEL_BLOCK_SIZE == 0
        and shape.key_dim == shape.value_dim
        and shape.key_dim % 8 == 0
        and shape.key_dim <= _MAX_HEAD_DIM
    )


def paged_attention_cuda(
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
    metadata: PagedMetadata = options["attention_metadata"]
    rule, query, key, value = take_up(module, (query, key, value), attention_mask, options)
    if isinstance(metadata.cache, CacheProbe):
        return query.new_zeros(1, *query.shape[:2], value.shape[2]), None
    layer = metadata.cache.layers[module]
    layer.write(metadata.slots, key, value)
    if layer.paged_kernel and rule.softcap is None:
        return attend_paged(query, layer, metadata, rule)[None], None
    return attend_gathered(query, layer, metadata, rule)[None], None


AttentionInterface.register(ATTENTION, paged_attention_cuda)


def attend_paged(
    query: Tensor, layer: TokenMajorLayer, metadata: PagedMetadata, rule: AttentionRule
) -> Tensor:
    """All rows [tokens, heads, dim] by one kernel that reads the pages in place."""
    if rule.window is not None:
        window = (rule.window - 1, 0)
    else:
        # A single query is its sequence's last token, so that nothing is to be masked, and only
        # an unmasked call lets the kernel share keys between the heads of a group.
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


def attend_gathered(
    query: Tensor, layer: TokenMajorLayer, metadata: PagedMetadata, rule: AttentionRule
) -> Tensor:
    """All rows [tokens, heads, dim]: sequences with one token together, the others one by one."""
    tokens, heads, _ = query.shape
    output = query.new_empty(tokens, heads, layer.shape.value_dim)
    singles = metadata.num_singles
    if singles:
        context = layer.gather(metadata.block_table[:singles])
        positions = metadata.lengths[:singles, None] - 1
        output[:singles] = _attend(query[:singles, :, None], context, positions, rule)[:, :, 0]
    for row, piece in enumerate(metadata.pieces, start=singles):
        context = layer.gather(metadata.block_table[row : row + 1, : piece.num_blocks])
        first = piece.length - (piece.end - piece.start)
        positions = torch.arange(first, piece.length, device=query.device)[None]
        rows = query[piece.start : piece.end].transpose(0, 1)[None]
        output[piece.start : piece.end] = _attend(rows, context, positions, rule)[0].transpose(0, 1)
    return output


def _attend(
    query: Tensor, context: tuple[Tensor, Tensor], positions: Tensor, rule: AttentionRule
) -> Tensor:
    """``query`` [rows, heads, q, dim] at ``positions`` [rows, q] over ``context``, keys and values
    [rows, kv_heads, tokens, dim] from the sequence's first token on."""
    keys, values = context
    bias = visibility_bias(positions, keys.shape[2], rule.window, query.dtype)[:, None]
    shared = query.shape[1] // keys.shape[1]
    if rule.softcap is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=bias, scale=rule.scale, enable_gqa=shared > 1
        )
    # Scores are capped as in Gemma 2 (Gemma Team, 2024, section 2), which fused kernels lack.
    keys, values = (x.repeat_interleave(shared, 1) for x in context)
    scores = torch.tanh(query @ keys.transpose(2, 3) * (rule.scale / rule.softcap)) * rule.softcap
    return (scores + bias).softmax(-1) @ values
