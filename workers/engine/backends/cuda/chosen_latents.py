"""Attention to chosen latents in Triton: each row reads its tokens by their places in the cache.

A latent is both a part of the key, or all of it, and the value, so a program loads it once for two
products, where the decode kernel (``split_decode``) would load keys and values. It would also pad a
key of 512 and 64 numbers to 1,024, which no GPU's shared memory holds. Parts of a row's tokens are
joined by the decode kernel's second half.

Importing this needs triton, which builds of torch for CUDA include.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.cuda.split_decode import MAX_SPLITS, join_parts, normalize, num_splits
from workers.engine.core.layer_shape import LayerShape

_MAX_DIM = 576
"""The most numbers of a token, of which ``launches.MAX_RANK`` may be a latent."""
_HEADS = 16
"""Query heads of one program, the fewest that ``tl.dot`` takes."""
_TOKENS = 32
_STAGES = 2


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["slots_row", "num_chosen", "num_splits"]
)
def attend_chosen(  # type: ignore[no-untyped-def]
    query, tokens, slots, sinks, output, parts, sums, scale,
    query_row, query_head, token_stride, slots_row, output_row, output_head,
    num_chosen, num_splits,
    NUM_HEADS: tl.constexpr, RANK: tl.constexpr, ROTATED: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr,
    RANK_WIDTH: tl.constexpr, ROTATED_WIDTH: tl.constexpr,
    SINKS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One part of the tokens of one row, for ``HEADS`` of its heads. A negative slot is no token.

    ``WHOLE``: the part is all tokens, and the result goes to ``output``.
    """
    row = tl.program_id(0)
    split = tl.program_id(2)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = heads < NUM_HEADS
    per_part = tl.cdiv(tl.cdiv(num_chosen, TOKENS), num_splits) * TOKENS
    first = split * per_part
    last = tl.minimum(first + per_part, num_chosen)

    of_latent = tl.arange(0, RANK_WIDTH)
    of_rotated = tl.arange(0, ROTATED_WIDTH)
    at_query = query + row * query_row + heads[:, None] * query_head
    is_latent = (of_latent < RANK)[None, :]
    is_rotated = (of_rotated < ROTATED)[None, :]
    plain = tl.load(at_query + of_latent[None, :], mask=is_head[:, None] & is_latent, other=0.0)
    if ROTATED > 0:
        turned = tl.load(
            at_query + RANK + of_rotated[None, :], mask=is_head[:, None] & is_rotated, other=0.0
        )
    highest = tl.full([HEADS], -float("inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, RANK_WIDTH], tl.float32)
    for at in range(first, last, TOKENS):
        place = at + tl.arange(0, TOKENS)
        slot = tl.load(slots + row.to(tl.int64) * slots_row + place, mask=place < last, other=-1)
        seen = slot >= 0
        at_token = tokens + slot[:, None] * token_stride
        latents = tl.load(at_token + of_latent[None, :], mask=seen[:, None] & is_latent, other=0.0)
        scores = tl.dot(plain, tl.trans(latents), input_precision="ieee")
        if ROTATED > 0:
            rotated = tl.load(
                at_token + RANK + of_rotated[None, :], mask=seen[:, None] & is_rotated, other=0.0
            )
            scores += tl.dot(turned, tl.trans(rotated), input_precision="ieee")
        scores = tl.where(seen[None, :], scores * scale, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(new_highest == -float("inf"), 0.0, new_highest)
        weights = tl.exp(scores - base[:, None])
        shrunk = tl.exp(highest - base)
        total = total * shrunk + tl.sum(weights, 1)
        mixed = mixed * shrunk[:, None]
        mixed += tl.dot(weights.to(latents.dtype), latents, input_precision="ieee")
        highest = new_highest

    is_output = is_head[:, None] & is_latent
    if WHOLE:
        at_output = row * output_row + heads[:, None] * output_head + of_latent[None, :]
        joined = normalize(mixed, total, highest, sinks, heads, is_head, SINKS)
        tl.store(output + at_output, joined.to(output.dtype.element_ty), mask=is_output)
    else:
        part = (row * NUM_HEADS + heads) * num_splits + split
        divisor = tl.where(total == 0.0, 1.0, total)  # of a part without a token
        tl.store(sums + part, highest + tl.log(divisor), mask=is_head)
        shares = mixed / divisor[:, None]
        tl.store(parts + part[:, None] * RANK + of_latent[None, :], shares, mask=is_output)


def takes(shape: LayerShape, dtype: torch.dtype) -> bool:
    """Return whether the kernel may compute layers of this shape, if they hold latents."""
    return (
        dtype in (torch.bfloat16, torch.float16)
        and (shape.num_kv_heads, shape.value_dim) == (1, 0)
        and shape.key_dim <= _MAX_DIM
    )


def constants(rank: int, dim: int, num_heads: int) -> dict[str, int]:
    """Return the sizes that :func:`attend_chosen` is compiled for."""
    return {
        "NUM_HEADS": num_heads,
        "RANK": rank,
        "ROTATED": dim - rank,
        "HEADS": _HEADS,
        "TOKENS": _TOKENS,
        "RANK_WIDTH": max(16, triton.next_power_of_2(rank)),
        "ROTATED_WIDTH": max(16, triton.next_power_of_2(dim - rank)),
    }


def mix(
    query: Tensor, tokens: Tensor, slots: Tensor, rank: int, rule: AttentionRule, processors: int
) -> Tensor:
    """Attend with ``query`` [rows, heads, dim] to ``tokens`` [slots, dim], which begin with the
    latents: each row to those at its ``slots`` [rows, chosen], where they are not negative. Every
    row has at least one token. Returns [rows, heads, rank]."""
    rows, num_heads, dim = query.shape
    chosen = slots.shape[1]
    sizes = constants(rank, dim, num_heads)
    tiles = triton.cdiv(num_heads, _HEADS)
    splits = num_splits(rows, tiles, chosen, processors)
    query = query if query.stride(-1) == 1 else query.contiguous()
    slots = slots if slots.stride(-1) == 1 else slots.contiguous()
    output = query.new_empty(rows, num_heads, rank)
    parts = sums = output
    if splits > 1:
        parts = query.new_empty(rows, num_heads, splits, rank, dtype=torch.float32)
        sums = query.new_empty(rows, num_heads, splits, dtype=torch.float32)
    sinks: Any = rule.sinks if rule.sinks is not None else output
    attend_chosen[(rows, tiles, splits)](
        query, tokens, slots, sinks, output, parts, sums, rule.scale,
        *query.stride()[:2], tokens.stride(0), slots.stride(0), *output.stride()[:2],
        chosen, splits,
        **sizes,
        SINKS=rule.sinks is not None,
        WHOLE=splits == 1,
        num_stages=_STAGES,
    )  # fmt: skip
    if splits > 1:
        join_parts[(rows, num_heads)](
            parts, sums, sinks, output, *output.stride()[:2], splits,
            VALUE_DIM=rank,
            VALUE_WIDTH=sizes["RANK_WIDTH"],
            SPLITS=MAX_SPLITS,
            SINKS=rule.sinks is not None,
        )  # fmt: skip
    return output
