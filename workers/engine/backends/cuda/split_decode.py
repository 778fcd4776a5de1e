"""Decoding over pages in Triton: one query per sequence, its context split among programs.

Each program attends with the query heads that share a key head to one part of one sequence, and
keeps a running maximum as in Dao et al., "FlashAttention" (2022). A second kernel joins the parts
by their log-sum-exp ("Flash-Decoding", Dao, Haziza, Massa and Sizov, 2023). So a single long
sequence occupies the whole GPU, and pages can be of any size.

Importing this needs triton, which builds of torch for CUDA include.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer
from workers.engine.core.layer_shape import LayerShape

MAX_HEAD_DIM = 256
MAX_SPLITS = 64
_FEWEST_TOKENS = 256
"""The least tokens of a part: a smaller one costs more to join than it gains."""
_MOST_HEADS = 64
"""Query heads of one program; ``tl.dot`` requires at least 16."""
_PIPELINES = {64: (128, 3), 128: (64, 2), MAX_HEAD_DIM: (32, 3)}
"""By the largest head: how many tokens at a time, and the stages of their pipeline. Shared memory
suffices on every GPU. Measured on an H100 for heads of 64 and 128, from 1 row to 256."""


@triton.jit  # type: ignore[untyped-decorator]
def normalize(  # type: ignore[no-untyped-def]
    mixed, total, highest, sinks, heads, is_head, SINKS: tl.constexpr
):
    """Values ``mixed`` [heads, dim] of all tokens, divided by the sum of their weights and of their
    head's sink. Weights are relative to the ``highest`` score."""
    if SINKS:
        sink = tl.load(sinks + heads, mask=is_head, other=0.0).to(tl.float32)
        new_highest = tl.maximum(highest, sink)
        shrunk = tl.exp(highest - new_highest)
        mixed = mixed * shrunk[:, None]
        total = total * shrunk + tl.exp(sink - new_highest)
    return mixed / total[:, None]


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["table_stride", "num_splits"]
)
def attend_part(  # type: ignore[no-untyped-def]
    query, key, value, sinks, output, parts, sums, table, lengths,
    scale, softcap, window, chunk,
    query_row, query_head, key_page, key_token, key_head, value_page, value_token, value_head,
    output_row, output_head, table_stride, num_splits,
    GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAGE: tl.constexpr,
    HEADS: tl.constexpr, TILES: tl.constexpr, TOKENS: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, CHUNKED: tl.constexpr,
    SINKS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One part of one row, for ``HEADS`` of the ``GROUP`` query heads of one key head.

    ``WHOLE``: the part is the whole context, and the result goes to ``output``.
    """
    row = tl.program_id(0)
    key_head_id = tl.program_id(1) // TILES
    split = tl.program_id(2)
    in_group = tl.program_id(1) % TILES * HEADS + tl.arange(0, HEADS)
    is_head = in_group < GROUP
    heads = key_head_id * GROUP + in_group
    length = tl.load(lengths + row)
    begin = 0
    if WINDOWED:
        begin = tl.maximum(length - window, 0)
    if CHUNKED:
        begin = tl.maximum(begin, (length - 1) // chunk * chunk)
    # Parts are whole blocks of tokens, the first of which may begin before what is seen.
    start = begin // TOKENS * TOKENS
    per_part = tl.cdiv(tl.cdiv(length - start, TOKENS), num_splits) * TOKENS
    first = start + split * per_part
    last = tl.minimum(first + per_part, length)

    key_column = tl.arange(0, KEY_WIDTH)
    value_column = tl.arange(0, VALUE_WIDTH)
    rows = tl.load(
        query + row * query_row + heads[:, None] * query_head + key_column[None, :],
        mask=is_head[:, None] & (key_column < KEY_DIM)[None, :],
        other=0.0,
    )
    highest = tl.full([HEADS], -float("inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, VALUE_WIDTH], tl.float32)
    for at in range(first, last, TOKENS):
        place = at + tl.arange(0, TOKENS)
        seen = (place >= begin) & (place < last)
        page = tl.load(table + row * table_stride + place // PAGE, mask=seen, other=0).to(tl.int64)
        key_at = page * key_page + place % PAGE * key_token + key_head_id * key_head
        keys = tl.load(
            key + key_at[:, None] + key_column[None, :],
            mask=seen[:, None] & (key_column < KEY_DIM)[None, :],
            other=0.0,
        )
        scores = tl.dot(rows, tl.trans(keys), input_precision="ieee") * scale
        if CAPPED:  # tanh, which Triton lacks in a portable form
            scores = softcap * (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0)
        scores = tl.where(seen[None, :], scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(new_highest == -float("inf"), 0.0, new_highest)
        weights = tl.exp(scores - base[:, None])
        shrunk = tl.exp(highest - base)
        value_at = page * value_page + place % PAGE * value_token + key_head_id * value_head
        values = tl.load(
            value + value_at[:, None] + value_column[None, :],
            mask=seen[:, None] & (value_column < VALUE_DIM)[None, :],
            other=0.0,
        )
        total = total * shrunk + tl.sum(weights, 1)
        mixed = mixed * shrunk[:, None]
        mixed += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        highest = new_highest

    is_value = is_head[:, None] & (value_column < VALUE_DIM)[None, :]
    if WHOLE:
        at_output = row * output_row + heads[:, None] * output_head + value_column[None, :]
        joined = normalize(mixed, total, highest, sinks, heads, is_head, SINKS)
        tl.store(output + at_output, joined.to(output.dtype.element_ty), mask=is_value)
    else:
        num_heads = tl.num_programs(1) // TILES * GROUP
        part = (row * num_heads + heads) * num_splits + split
        empty = total == 0.0
        tl.store(sums + part, highest + tl.log(tl.where(empty, 1.0, total)), mask=is_head)
        shares = mixed / tl.where(empty, 1.0, total)[:, None]
        tl.store(parts + part[:, None] * VALUE_DIM + value_column[None, :], shares, mask=is_value)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["num_splits"]
)
def join_parts(  # type: ignore[no-untyped-def]
    parts, sums, sinks, output, output_row, output_head, num_splits,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, SPLITS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """One head of one row: the sum of its parts, weighted by their sums of scores."""
    row, head = tl.program_id(0), tl.program_id(1)
    first = (row * tl.num_programs(1) + head) * num_splits
    split = tl.arange(0, SPLITS)
    is_part = split < num_splits
    column = tl.arange(0, VALUE_WIDTH)
    sizes = tl.load(sums + first + split, mask=is_part, other=-float("inf"))
    highest = tl.max(sizes, 0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        highest = tl.maximum(highest, sink)
    weights = tl.exp(sizes - highest)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp(sink - highest)
    shares = tl.load(
        parts + (first + split)[:, None] * VALUE_DIM + column[None, :],
        mask=is_part[:, None] & (column < VALUE_DIM)[None, :],
        other=0.0,
    )
    joined = tl.sum(shares * weights[:, None], 0) / total
    at_output = row * output_row + head * output_head + column
    tl.store(output + at_output, joined.to(output.dtype.element_ty), mask=column < VALUE_DIM)


def takes(shape: LayerShape, dtype: torch.dtype) -> bool:
    """Return whether the kernel computes layers of this shape."""
    return (
        dtype in (torch.bfloat16, torch.float16)
        and shape.key_dim <= MAX_HEAD_DIM
        and 0 < shape.value_dim <= MAX_HEAD_DIM  # index keys and latents have no values
    )


def num_splits(rows: int, programs_per_row: int, max_length: int, processors: int) -> int:
    """Return the number of parts to split contexts of up to ``max_length`` tokens into, so that two
    programs run on each of the GPU's ``processors``."""
    wanted = triton.cdiv(2 * processors, rows * programs_per_row)
    return int(max(1, min(wanted, max_length // _FEWEST_TOKENS, MAX_SPLITS)))


def _pipeline(shape: LayerShape) -> tuple[int, int]:
    largest = max(shape.key_dim, shape.value_dim)
    return next(pipeline for dim, pipeline in _PIPELINES.items() if largest <= dim)


def constants(shape: LayerShape, group: int, page: int) -> dict[str, int]:
    """Return the sizes that :func:`attend_part` is compiled for, given the query heads per key
    head."""
    heads = min(_MOST_HEADS, max(16, triton.next_power_of_2(group)))
    widths = [max(16, triton.next_power_of_2(dim)) for dim in (shape.key_dim, shape.value_dim)]
    tokens, _ = _pipeline(shape)
    return {
        "GROUP": group,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "PAGE": page,
        "HEADS": heads,
        "TILES": triton.cdiv(group, heads),
        "TOKENS": tokens,
        "KEY_WIDTH": widths[0],
        "VALUE_WIDTH": widths[1],
    }


def attend(
    query: Tensor,
    layer: TokenMajorLayer,
    block_table: Tensor,
    lengths: Tensor,
    max_length: int,
    rule: AttentionRule,
    processors: int,
) -> Tensor:
    """Attend with one token of each row: ``query`` [rows, heads, key_dim] over ``lengths`` [rows]
    tokens in the pages of ``block_table`` [rows, blocks] to [rows, heads, value_dim].

    ``lengths`` and ``block_table`` are int32. Every row has at least one token and at most
    ``max_length``.
    """
    rows, num_heads, _ = query.shape
    shape = layer.shape
    sizes = constants(shape, num_heads // shape.num_kv_heads, layer.key.shape[1])
    programs_per_row = shape.num_kv_heads * sizes["TILES"]
    splits = num_splits(rows, programs_per_row, max_length, processors)
    query = query if query.stride(-1) == 1 else query.contiguous()
    table = block_table if block_table.stride(-1) == 1 else block_table.contiguous()
    output = query.new_empty(rows, num_heads, shape.value_dim)
    parts = sums = output
    if splits > 1:
        parts = query.new_empty(rows, num_heads, splits, shape.value_dim, dtype=torch.float32)
        sums = query.new_empty(rows, num_heads, splits, dtype=torch.float32)
    sinks: Any = rule.sinks if rule.sinks is not None else output
    visible = rule.visible
    attend_part[(rows, programs_per_row, splits)](
        query, layer.key, layer.value, sinks, output, parts, sums, table, lengths,
        rule.scale, rule.softcap or 1.0, visible.window or 0, visible.chunk or 0,
        *query.stride()[:2], *layer.key.stride()[:3], *layer.value.stride()[:3],
        *output.stride()[:2], table.stride(0), splits,
        **sizes,
        CAPPED=rule.softcap is not None,
        WINDOWED=visible.window is not None,
        CHUNKED=visible.chunk is not None,
        SINKS=rule.sinks is not None,
        WHOLE=splits == 1,
        num_stages=_pipeline(shape)[1],
    )  # fmt: skip
    if splits > 1:
        join_parts[(rows, num_heads)](
            parts, sums, sinks, output, *output.stride()[:2], splits,
            VALUE_DIM=shape.value_dim,
            VALUE_WIDTH=sizes["VALUE_WIDTH"],
            SPLITS=MAX_SPLITS,
            SINKS=rule.sinks is not None,
        )  # fmt: skip
    return output
