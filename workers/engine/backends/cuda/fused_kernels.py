"""What lies between a layer's matrix products, in Triton: one kernel for what takes torch several.

Each kernel rounds where the operations that it replaces do (``fusable``). Tensors have their
columns side by side; rows may lie anywhere.

Importing this needs triton, which builds of torch for CUDA include.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.engine.backends.cuda.fusable import Activation, NormRule, RotationRule
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer

_COLUMNS = 1024
"""Columns of a gate for one program."""


# ``inner`` may be the number of tokens, whose multiples of 16 would compile anew while serving.
@triton.jit(do_not_specialize=["inner"])  # type: ignore[untyped-decorator]
def normalize_rows(  # type: ignore[no-untyped-def]
    x, added, weight, total, output, epsilon, inner,
    x_outer, x_inner, added_row, total_row, output_outer, output_inner,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ADDS: tl.constexpr, WEIGHTED: tl.constexpr,
    OFFSET: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """One row divided by its root mean square (Zhang and Sennrich, "Root Mean Square Layer
    Normalization", 2019). ``ADDS``: the row is ``x + added``, which goes to ``total``.

    Rows are numbered in two dimensions, the inner one of ``inner`` rows.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < SIZE
    at = row // inner * x_outer + row % inner * x_inner
    numbers = tl.load(x + at + column, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        numbers += tl.load(added + row * added_row + column, mask=inside, other=0.0).to(tl.float32)
        rounded = numbers.to(total.dtype.element_ty)
        tl.store(total + row * total_row + column, rounded, mask=inside)
        numbers = rounded.to(tl.float32)
    normal = numbers * tl.rsqrt(tl.sum(numbers * numbers, 0) / SIZE + epsilon)
    if ROUNDS:
        normal = normal.to(output.dtype.element_ty).to(tl.float32)
    if WEIGHTED:
        weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        if OFFSET:
            weights += 1.0
            if ROUNDS:
                weights = weights.to(weight.dtype.element_ty).to(tl.float32)
        normal *= weights
    at = row // inner * output_outer + row % inner * output_inner
    tl.store(output + at + column, normal.to(output.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def gate_rows(  # type: ignore[no-untyped-def]
    gate, up, output, size, gate_row, up_row, output_row,
    COLUMNS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Some columns of one row: the activation of ``gate``, times ``up``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < size
    x = tl.load(gate + row * gate_row + column, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        active = x / (1.0 + tl.exp(-x))
    else:  # Triton lacks tanh in a portable form: (1 + tanh y) / 2 = 1 / (1 + exp(-2 y))
        y = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        active = x / (1.0 + tl.exp(-2.0 * y))
    active = active.to(output.dtype.element_ty).to(tl.float32)
    active *= tl.load(up + row * up_row + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * output_row + column, active.to(output.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def rotate_numbers(  # type: ignore[no-untyped-def]
    head, cosine, sine, place, inside,
    DIM: tl.constexpr, INTERLEAVED: tl.constexpr, TABLE: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """The numbers at each ``place`` of a head, after the rotation."""
    own = tl.load(head + place, mask=inside, other=0.0)
    if DIM == 0:
        return own
    turns = inside & (place < DIM)
    if INTERLEAVED:
        is_first = place % 2 == 0
        partner = tl.where(is_first, place + 1, place - 1)
    else:
        is_first = place < DIM // 2
        partner = tl.where(is_first, place + DIM // 2, place - DIM // 2)
    entry = place
    if TABLE == 1:
        entry = place // 2
    if TABLE == 2:
        entry = tl.where(place < DIM // 2, place, place - DIM // 2)
    other = tl.load(head + partner, mask=turns, other=0.0).to(tl.float32)
    other = tl.where(is_first, -other, other)
    kept = own.to(tl.float32) * tl.load(cosine + entry, mask=turns, other=0.0).to(tl.float32)
    crossed = other * tl.load(sine + entry, mask=turns, other=0.0).to(tl.float32)
    if ROUNDS:
        kept = kept.to(own.dtype).to(tl.float32)
        crossed = crossed.to(own.dtype).to(tl.float32)
    return tl.where(turns, (kept + crossed).to(own.dtype), own)


@triton.jit  # type: ignore[untyped-decorator]
def rotate_and_store(  # type: ignore[no-untyped-def]
    query, key, value, cosine, sine, new_query, new_key, key_pages, value_pages, slots,
    num_queries, query_row, query_head, key_row, key_head, value_row, value_head, table_row,
    new_query_row, new_query_head, new_key_row, new_key_head,
    page_key_row, page_key_head, page_value_row, page_value_head, slots_row,
    KEY_DIM: tl.constexpr, KEY_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    DIM: tl.constexpr, INTERLEAVED: tl.constexpr, TABLE: tl.constexpr, ROUNDS: tl.constexpr,
    STORES: tl.constexpr, KEEPS: tl.constexpr,
):  # fmt: skip
    """One head of one token: ``num_queries`` of the query first, then those of the key. ``STORES``:
    the key and its value go to the token's slot in the pages. ``KEEPS``: the key goes to
    ``new_key``."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    place = tl.arange(0, KEY_WIDTH)
    inside = place < KEY_DIM
    cosines, sines = cosine + row * table_row, sine + row * table_row
    if head < num_queries:
        source = query + row * query_row + head * query_head
        new = rotate_numbers(source, cosines, sines, place, inside, DIM, INTERLEAVED, TABLE, ROUNDS)
        tl.store(new_query + row * new_query_row + head * new_query_head + place, new, mask=inside)
    else:
        head = head - num_queries
        source = key + row * key_row + head * key_head
        new = rotate_numbers(source, cosines, sines, place, inside, DIM, INTERLEAVED, TABLE, ROUNDS)
        if KEEPS:
            tl.store(new_key + row * new_key_row + head * new_key_head + place, new, mask=inside)
        if STORES:
            slot = tl.load(slots + row * slots_row)
            target = key_pages + slot * page_key_row + head * page_key_head
            tl.store(target + place, new, mask=inside)
            if VALUE_DIM > 0:  # a latent has none
                column = tl.arange(0, VALUE_WIDTH)
                is_value = column < VALUE_DIM
                source = value + row * value_row + head * value_head
                target = value_pages + slot * page_value_row + head * page_value_head
                tl.store(target + column, tl.load(source + column, mask=is_value), mask=is_value)


def normalize(
    x: Tensor, added: Tensor | None, weight: Tensor | None, rule: NormRule, total: Tensor
) -> Tensor:
    """``x`` [1, rows, size] or [1, rows, rows, size] by ``rule``. With ``added``, which is
    contiguous, the norm of their sum, which goes to ``total``."""
    size = x.shape[-1]
    inner = x.shape[2] if x.dim() == 4 else 1
    output = torch.empty_like(x)
    width = triton.next_power_of_2(size)
    normalize_rows[(x.numel() // size,)](
        x, x if added is None else added, x if weight is None else weight, total, output,
        rule.epsilon, inner,
        x.stride(1), x.stride(-2), size, size, output.stride(1), output.stride(-2),
        SIZE=size,
        WIDTH=width,
        ADDS=added is not None,
        WEIGHTED=weight is not None,
        OFFSET=rule.offset,
        ROUNDS=rule.rounds,
        num_warps=1 if width <= 256 else 4 if width <= 2048 else 8 if width <= 8192 else 16,
    )  # fmt: skip
    return output


def gate(x: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """Return the activation of ``x`` [..., rows, size], times ``up``; all but two dimensions are
    1."""
    rows, size = x.shape[-2:]
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    gate_rows[(rows, triton.cdiv(size, _COLUMNS))](
        x, up, output, size, x.stride(-2), up.stride(-2), size,
        COLUMNS=_COLUMNS,
        SILU=activation is Activation.SILU,
    )  # fmt: skip
    return output


def rotate(
    heads: tuple[Tensor, Tensor],
    tables: tuple[Tensor, Tensor],
    rule: RotationRule,
    into: tuple[Tensor, Tensor],
) -> None:
    """Turn queries and keys, each [tokens, its heads, dim], by cosines and sines [tokens, width].
    Both results go to ``into``."""
    query, key = heads
    _rotate(heads, key, tables, rule, into, None, query, keeps=True)


def rotate_to_pages(
    heads: tuple[Tensor, Tensor],
    tables: tuple[Tensor, Tensor],
    rule: RotationRule,
    into: tuple[Tensor, Tensor],
    value: Tensor,
    layer: TokenMajorLayer,
    slots: Tensor,
    *,
    keeps: bool,
) -> None:
    """As :func:`rotate`, and store keys and values at ``slots`` [tokens]. Keys go to ``into`` only
    if it ``keeps`` them."""
    _rotate(heads, value, tables, rule, into, layer, slots, keeps=keeps)


def store(key: Tensor, value: Tensor, layer: TokenMajorLayer, slots: Tensor) -> None:
    """Store keys and values [tokens, heads, dim] at ``slots`` [tokens]."""
    rule = RotationRule(0, interleaved=False, table=0, rounds=False)
    no_queries = key[:, :0]
    unused = (key[:, 0], key[:, 0])
    _rotate((no_queries, key), value, unused, rule, (key, key), layer, slots, keeps=False)


def _rotate(
    heads: tuple[Tensor, Tensor],
    value: Tensor,
    tables: tuple[Tensor, Tensor],
    rule: RotationRule,
    into: tuple[Tensor, Tensor],
    layer: TokenMajorLayer | None,
    slots: Tensor,
    *,
    keeps: bool,
) -> None:
    (query, key), (cosine, sine) = heads, tables
    key_pages, value_pages = (key, value) if layer is None else (layer.key, layer.value)
    rows, num_queries, dim = query.shape
    rotate_and_store[(rows, num_queries + key.shape[1])](
        query, key, value, cosine, sine, *into, key_pages, value_pages, slots,
        num_queries, *query.stride()[:2], *key.stride()[:2], *value.stride()[:2], cosine.stride(0),
        *into[0].stride()[:2], *into[1].stride()[:2],
        *key_pages.stride()[-3:-1], *value_pages.stride()[-3:-1], slots.stride(0),
        KEY_DIM=dim,
        KEY_WIDTH=triton.next_power_of_2(dim),
        VALUE_DIM=value.shape[-1],
        VALUE_WIDTH=triton.next_power_of_2(value.shape[-1]),
        DIM=rule.dim,
        INTERLEAVED=rule.interleaved,
        TABLE=rule.table,
        ROUNDS=rule.rounds,
        STORES=layer is not None,
        KEEPS=keeps,
        num_warps=1,
    )  # fmt: skip
