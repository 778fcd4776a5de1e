"""Defines what can be fused (norms, gates, rotations) by torch operations, which also say where
numbers are rounded, and recognises it among a model's modules and functions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

_ROWS = 64
_MOST_DIFFERENT = 0.01
"""The share of numbers that may differ in their last bit, because a sum adds in another order.
Rounding at another place changes a quarter of them."""


class Activation(StrEnum):
    """The activation of a gate, rounded before it is multiplied."""

    SILU = "silu"
    GELU = "gelu, by its tanh"

    def compute(self, gate: Tensor, up: Tensor) -> Tensor:
        active = silu(gate) if self is Activation.SILU else gelu(gate, approximate="tanh")
        return active * up


@dataclass(frozen=True, slots=True)
class NormRule:
    """A norm by the root mean square, in float32, with a weight of ``weight + offset``.

    ``rounds``: the normalized numbers are rounded before they are multiplied by the weight.
    """

    epsilon: float
    offset: int
    rounds: bool

    def compute(self, x: Tensor, weight: Tensor | None) -> Tensor:
        numbers = x.float()
        mean = numbers.pow(2).mean(-1, keepdim=True)
        normal = numbers * torch.rsqrt(mean + self.epsilon)
        if weight is None:
            return normal.to(x.dtype)
        if self.rounds:
            return (weight + self.offset) * normal.to(x.dtype)
        return (normal * (weight.float() + self.offset)).to(x.dtype)


@torch.inference_mode()
def get_norm_rule(module: nn.Module) -> NormRule | None:
    """Return what ``module`` computes, if it is such a norm; found by trying drawn numbers."""
    parameters = dict(module.named_parameters())
    epsilon = _epsilon(module)
    if epsilon is None or len(list(module.modules())) > 1 or parameters.keys() - {"weight"}:
        return None
    weight = parameters.get("weight")
    if any(True for _ in module.buffers()) or (weight is not None and weight.dim() != 1):
        return None
    size, dtype = (256, torch.bfloat16) if weight is None else (len(weight), weight.dtype)
    drawn = torch.Generator().manual_seed(5)
    trial = None if weight is None else torch.randn(size, generator=drawn).to(dtype)
    # Small rows show the epsilon.
    scales = torch.logspace(-4, 1, _ROWS)[:, None]
    x = (torch.randn(_ROWS, size, generator=drawn) * scales).to(dtype)
    output = _try_norm(module, trial, x)
    for offset, rounds in product((0, 1), (True, False)):
        rule = NormRule(epsilon, offset, rounds)
        if output is not None and _agree(output, rule.compute(x, trial)):
            return rule
    return None


def _epsilon(module: Any) -> float | None:
    values = (getattr(module, name, None) for name in ("variance_epsilon", "eps", "epsilon"))
    return next((value for value in values if isinstance(value, float)), None)


def _try_norm(module: Any, weight: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the module's result for ``x`` with another ``weight``; None if it takes something
    else."""
    try:
        miniature = object.__new__(type(module))
        miniature.__dict__.update(module.__dict__)
        miniature._parameters = {} if weight is None else {"weight": nn.Parameter(weight)}
        result = type(module).forward(miniature, x)
    except Exception:  # noqa: BLE001 - it takes something else
        return None
    return result if isinstance(result, Tensor) else None


class Table:
    """Which entry of a row of cosines belongs to a number at a place in its head."""

    OWN, PAIR, HALF = range(3)  # the place; the place // 2; the place modulo half of the rotation


@dataclass(frozen=True, slots=True)
class RotationRule:
    """Rotary positions: the first ``dim`` numbers of a head turn in pairs, each with the number
    ``dim / 2`` places away or, if ``interleaved``, with its neighbour.

    ``rounds``: both products are rounded before they are added.
    """

    dim: int
    interleaved: bool
    table: int
    rounds: bool

    def compute(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """``heads`` [..., tokens, head_dim] with tables [tokens, width]."""
        place = torch.arange(self.dim, device=heads.device)
        half = self.dim // 2
        if self.interleaved:
            is_first, partner = place % 2 == 0, place ^ 1
        else:
            is_first, partner = place < half, (place + half) % self.dim
        entry = (place, place // 2, place % half)[self.table]
        turning = heads[..., : self.dim]
        other = turning[..., partner]
        other = torch.where(is_first, -other, other)
        kept, crossed = turning.float() * cosine[:, entry], other.float() * sine[:, entry]
        if self.rounds:
            kept, crossed = kept.to(heads.dtype).float(), crossed.to(heads.dtype).float()
        turned = (kept + crossed).to(heads.dtype)
        return torch.cat([turned, heads[..., self.dim :]], dim=-1)


@cache
@torch.inference_mode()
def get_rotation(
    function: Callable[..., Any], dtype: torch.dtype, tables: torch.dtype, head_dim: int, width: int
) -> RotationRule | None:
    """Return how ``function(query, key, cosine, sine)`` turns heads of ``dtype`` by cosines and
    sines of another type, [1, tokens, width]; found by trying drawn numbers."""
    drawn = torch.Generator().manual_seed(6)
    query = torch.randn(1, 4, _ROWS, head_dim, generator=drawn).to(dtype)
    key = torch.randn(1, 2, _ROWS, head_dim, generator=drawn).to(dtype)
    cosine, sine = (torch.randn(1, _ROWS, width, generator=drawn).to(tables) for _ in range(2))
    try:
        output = function(query, key, cosine, sine)
    except Exception:  # noqa: BLE001 - it takes something else
        return None
    if not isinstance(output, tuple) or [getattr(x, "dtype", None) for x in output] != [dtype] * 2:
        return None
    for rule in _rotations(head_dim, width):
        expected = [rule.compute(x, cosine[0], sine[0]) for x in (query, key)]
        if all(_agree(x, y) for x, y in zip(output, expected, strict=True)):
            return rule
    return None


def _rotations(head_dim: int, width: int) -> Iterator[RotationRule]:
    layouts = (
        (False, Table.OWN, width),
        (True, Table.OWN, width),
        (True, Table.PAIR, width),
        (True, Table.PAIR, 2 * width),
        (False, Table.HALF, 2 * width),
    )
    for (interleaved, table, dim), rounds in product(layouts, (True, False)):
        if dim <= head_dim and dim % 2 == 0:
            yield RotationRule(dim, interleaved, table, rounds)


def _agree(output: Tensor, expected: Tensor) -> bool:
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return False
    if output.dtype == torch.float32:
        return torch.allclose(output, expected, rtol=1e-5, atol=1e-6)
    differ = (output != expected).float().mean().item() <= _MOST_DIFFERENT
    return differ and torch.allclose(output.float(), expected.float(), rtol=2e-2, atol=1e-2)
