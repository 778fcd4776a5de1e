"""Holds the fused kernels, as triton's interpreter runs them on the CPU, to the rules that they
implement. For the process that ``interpreted.start`` starts."""

import torch
from torch import Tensor

from workers.engine.backends.cuda import fused_kernels, kernel_check
from workers.engine.backends.cuda.fusable import Activation, NormRule, RotationRule
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer, Way
from workers.engine.core.layer_shape import LayerShape

_MOST_DIFFERENT = 0.01
"""The share of rounded numbers that may differ in their last bit: sums add in other orders, and
exponentials differ."""
_TINY = 1e-5
"""Numbers this near to 0 differ more: torch's GELU adds 1 and a tanh near -1."""
_LAST_BIT = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def check_kernels() -> list[float]:
    """The errors that the check at start finds."""
    return list(kernel_check._measure_fused_errors(torch.device("cpu")))


def assert_agree(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = _LAST_BIT[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=_TINY)
    if actual.dtype != torch.float32:
        differ = ((actual - expected).abs() > _TINY).sum().item()
        assert differ <= max(2, _MOST_DIFFERENT * actual.numel())


def compare_norm(
    shape: tuple[int, ...],
    rule: NormRule,
    dtype: torch.dtype,
    *,
    weighted: bool,
    adds: bool,
    swapped: bool,
    seed: int,
) -> None:
    """``swapped``: rows lie as those of heads that were transposed."""
    torch.manual_seed(seed)
    x = (3 * torch.randn(shape)).to(dtype)
    if swapped:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    weight = torch.randn(shape[-1]).to(dtype) if weighted else None
    added = torch.randn(shape).to(dtype) if adds else None
    total = torch.empty_like(x) if adds else x
    before = x.clone()
    actual = fused_kernels.normalize(x, added, weight, rule, total)
    expected = before if added is None else before + added
    assert torch.equal(total, expected)
    assert torch.equal(x, before)
    assert_agree(actual, rule.compute(expected, weight))


def compare_gate(
    rows: int, size: int, activation: Activation, dtype: torch.dtype, *, halves: bool, seed: int
) -> None:
    """``halves``: both are halves of the columns of one matrix."""
    torch.manual_seed(seed)
    both = (4 * torch.randn(1, rows, 2 * size)).to(dtype)
    gate, up = both.chunk(2, dim=-1)
    if not halves:
        gate, up = gate.contiguous(), up.contiguous()
    assert_agree(fused_kernels.gate(gate, up, activation), activation.compute(gate, up))


def compare_rotation(
    tokens: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    rule: RotationRule,
    types: tuple[torch.dtype, torch.dtype],
    *,
    keeps: bool,
    seed: int,
) -> None:
    """Rotate and store, and each by itself. Heads of ``dims`` for keys and values, as projections
    lay them out, rotated by tables of the second type."""
    torch.manual_seed(seed)
    dtype, of_tables = types
    joint = torch.randn(tokens, (sum(heads)) * dims[0]).to(dtype)
    query, key = joint.split([heads[0] * dims[0], heads[1] * dims[0]], dim=-1)
    query, key = query.view(tokens, heads[0], dims[0]), key.view(tokens, heads[1], dims[0])
    value = torch.randn(heads[1], tokens, dims[1]).to(dtype).transpose(0, 1)
    width = rule.dim // 2 if rule.table == 2 else rule.dim
    cosine, sine = (torch.randn(tokens, width).to(of_tables) for _ in range(2))
    expected = [rule.compute(x.transpose(0, 1), cosine, sine).transpose(0, 1) for x in (query, key)]
    slots = torch.randperm(5 * 16)[: 5 * tokens].view(-1, 5)[:tokens, 2]  # a column of a table
    shape = LayerShape(heads[1], *dims)
    like = torch.empty(0, dtype=dtype)
    rotated, stored = (TokenMajorLayer(shape, 5, 16, like, Way.SPLIT) for _ in range(2))

    into = torch.empty_like(query), torch.full_like(key, torch.nan)
    fused_kernels.rotate_to_pages(
        (query, key), (cosine, sine), rule, into, value, rotated, slots, keeps=keeps
    )
    assert_agree(into[0], expected[0])
    if keeps:
        assert_agree(into[1], expected[1])
    else:
        assert into[1].isnan().all()
    assert_agree(rotated.key.flatten(0, 1)[slots], expected[1])
    assert torch.equal(rotated.value.flatten(0, 1)[slots], value)

    fused_kernels.rotate((query, key), (cosine, sine), rule, into)
    assert_agree(into[0], expected[0])
    assert_agree(into[1], expected[1])

    fused_kernels.store(key, value, stored, slots)
    expected_pages = TokenMajorLayer(shape, 5, 16, like, Way.SPLIT)
    expected_pages.write(slots, key, value)
    assert torch.equal(stored.key, expected_pages.key)
    assert torch.equal(stored.value, expected_pages.value)
