"""Reads gated delta networks from their modules: Qwen3-Next, Qwen3.5 and Qwen3.6."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from workers.engine.backends.cpu.layers.activations import is_silu
from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.recognition.convolutions import Taps, read_taps
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    expect,
    get_children,
    require_packed,
    take_one,
)

_MULTIPLE = 16
"""Sizes of heads in the kernels are multiples of this."""
_CLOSE = 1e-3


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """The heads, and where they lie in a projected row, as in kernels/model.h."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    query_begin: int
    key_begin: int
    value_begin: int
    gate_begin: int
    rates_begin: int
    key_step: int
    value_step: int

    @property
    def width(self) -> int:
        return self.rates_begin + 2 * self.value_heads

    @property
    def channels(self) -> int:
        """How many inputs of a token the convolution takes."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class DeltaParts:
    module: nn.Module
    heads: DeltaHeads
    input: TiledLinear
    gate: TiledLinear | None
    """None if ``input`` computes the gates too."""
    output: TiledLinear
    rates: Tensor
    """[2 * value_heads, hidden], in bfloat16: for how strongly to write, then to forget."""
    taps: Taps
    decay: Tensor
    decay_bias: Tensor
    norm: NormParts

    @property
    def width(self) -> int:
        """How many numbers of a token are projected."""
        return self.heads.width


def read_delta_network(module: Any) -> DeltaParts:
    """Raises Unrecognised."""
    children = get_children(module)
    read = _read_grouped if "in_proj_qkvz" in children else _read_parted
    heads, linears, rates = read(module, children)
    norm = _read_gated_norm(take_one(children, ("norm",)), heads.value_dim)
    taps = read_taps(take_one(children, ("conv1d",)), heads.channels)
    output = require_packed(take_one(children, ("out_proj",)))
    expect(not children, f"a delta network has {sorted(children)} too")
    fits = heads.key_dim % _MULTIPLE == heads.value_dim % _MULTIPLE == 0
    expect(fits, "heads of a delta network take no multiple of 16 numbers")
    expect(heads.value_heads % heads.key_heads == 0, "value heads share no keys")
    inputs = heads.value_heads * heads.value_dim
    expect(output.in_features == inputs, "a delta network has an unexpected width")
    expect(rates.dtype == torch.bfloat16, "rates of a delta network are not in bfloat16")
    expect(is_silu(module.activation), "a delta network has an unknown activation")
    return DeltaParts(
        module=module,
        heads=heads,
        input=linears[0],
        gate=linears[1] if len(linears) > 1 else None,
        output=output,
        rates=rates,
        taps=taps,
        decay=-module.A_log.detach().float().exp(),
        decay_bias=module.dt_bias.detach().float(),
        norm=norm,
    )


def _sizes(module: Any) -> tuple[int, int, int, int]:
    return module.num_k_heads, module.num_v_heads, module.head_k_dim, module.head_v_dim


_Read = tuple[DeltaHeads, list[TiledLinear], Tensor]


def _read_parted(module: Any, children: dict[str, Any]) -> _Read:
    """Queries, keys and values of all heads; gates; and each rate by a layer of its own."""
    linears = [require_packed(take_one(children, (f"in_proj_{x}",))) for x in ("qkv", "z")]
    rates = [take_one(children, (f"in_proj_{x}",)).weight.detach() for x in "ba"]
    key_heads, value_heads, key_dim, value_dim = _sizes(module)
    keys, values = key_heads * key_dim, value_heads * value_dim
    heads = DeltaHeads(
        *_sizes(module),
        query_begin=0,
        key_begin=keys,
        value_begin=2 * keys,
        gate_begin=2 * keys + values,
        rates_begin=2 * keys + 2 * values,
        key_step=key_dim,
        value_step=values // key_heads,
    )
    widths = [linear.out_features for linear in linears]
    expect(widths == [2 * keys + values, values], "a delta network has an unexpected width")
    return heads, linears, torch.cat(rates)


def _read_grouped(module: Any, children: dict[str, Any]) -> _Read:
    """Of each key head: its query, key, values and gates; and the rates of its values."""
    linear = require_packed(take_one(children, ("in_proj_qkvz",)))
    rates = take_one(children, ("in_proj_ba",)).weight.detach()
    key_heads, value_heads, key_dim, value_dim = _sizes(module)
    values = value_heads // key_heads * value_dim
    step = 2 * key_dim + 2 * values
    heads = DeltaHeads(
        *_sizes(module),
        query_begin=0,
        key_begin=key_dim,
        value_begin=2 * key_dim,
        gate_begin=2 * key_dim + values,
        rates_begin=key_heads * step,
        key_step=step,
        value_step=step,
    )
    expect(linear.out_features == key_heads * step, "a delta network has an unexpected width")
    by_kind = rates.view(key_heads, 2, value_heads // key_heads, -1).transpose(0, 1)
    return heads, [linear], by_kind.reshape(2 * value_heads, -1).contiguous()


@torch.inference_mode()
def _read_gated_norm(norm: Any, size: int) -> NormParts:
    """A norm whose result is multiplied by the activation of a gate."""
    draw = torch.Generator().manual_seed(4)
    x, gate = torch.randn(2, 4, size, generator=draw).unbind()
    weight = norm.weight.detach().float()
    expect(weight.shape == (size,), "the norm of a delta network has an unexpected width")
    epsilon = float(norm.variance_epsilon)
    expected = rms_norm(x, (size,), weight, epsilon) * silu(gate)
    answer = norm(x, gate)
    is_known = torch.allclose(answer, expected, rtol=_CLOSE, atol=_CLOSE)
    expect(is_known, "the norm of a delta network is not known")
    return NormParts(weight, None, epsilon, centers=False)
