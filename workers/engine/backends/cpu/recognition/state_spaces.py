"""Reads state-space layers of Mamba 2 from their modules: Granite 4, Nemotron-H, Falcon-H1."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from workers.engine.backends.cpu.layers.activations import is_silu
from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.layers.rated_linear import RatedLinear
from workers.engine.backends.cpu.recognition.convolutions import Taps, read_taps
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    Unrecognised,
    expect,
    get_children,
    require_packed,
    take_one,
)

_MULTIPLE = 16
"""Sizes of states in the kernels are multiples of this."""
_OUTPUT_MULTIPLE = 32
"""So are the outputs of all heads together."""
_CLOSE = 1e-3
_SIZES = ("num_heads", "n_groups", "head_dim", "ssm_state_size")
_ATTRIBUTES = (*_SIZES, "activation", "A_log", "D", "dt_bias", "time_step_limit")
"""Of a layer of Mamba 2; that of Mamba 1 has no heads."""


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """A norm of the gated outputs, or of the outputs before they are gated."""

    norm: NormParts
    span: int
    """How many numbers it takes together."""
    comes_first: bool


@dataclass(frozen=True, slots=True)
class Factors:
    """What the projected numbers are multiplied by: gates, what is convolved, and rates."""

    gate: float
    convolved: Tensor | None
    """[channels]"""
    rate: float


@dataclass(frozen=True, slots=True)
class StateSpaceParts:
    """A state-space layer, as in kernels/model.h."""

    module: nn.Module
    heads: int
    groups: int
    dim: int
    size: int
    input: TiledLinear
    output: TiledLinear
    rates: Tensor
    """[heads, hidden], in bfloat16"""
    rate_bias: Tensor
    limits: tuple[float, float]
    """Of rates."""
    decay: Tensor
    skip: Tensor
    taps: Taps
    norm: GatedNorm | None
    factors: Factors

    @property
    def width(self) -> int:
        """How many numbers of a token are projected."""
        return self.input.out_features + self.heads


def read_state_space(module: Any) -> StateSpaceParts:
    """Raises Unrecognised."""
    is_known = all(hasattr(module, name) for name in _ATTRIBUTES)
    expect(is_known, "a state-space layer is not that of Mamba 2")
    children = get_children(module)
    children.pop("act", None)
    heads, groups, dim, size = (int(getattr(module, name)) for name in _SIZES)
    outputs, channels = heads * dim, heads * dim + 2 * groups * size
    layer = take_one(children, ("in_proj",))
    if not isinstance(layer, RatedLinear):
        raise Unrecognised("the input of a state-space layer is not packed")
    taps = read_taps(take_one(children, ("conv1d",)), channels)
    output = require_packed(take_one(children, ("out_proj",)))
    norm = _read_gated_norm(children.pop("norm"), outputs) if "norm" in children else None
    expect(not children, f"a state-space layer has {sorted(children)} too")
    expect(size % _MULTIPLE == 0, "states take no multiple of 16 numbers")
    expect(outputs % _OUTPUT_MULTIPLE == dim % 2 == 0, "heads of a state-space layer are uneven")
    expect(heads % groups == 0, "heads of a state-space layer share no keys")
    is_known = layer.packed.out_features == outputs + channels and len(layer.rates) == heads
    expect(is_known and output.in_features == outputs, "a state-space layer has another width")
    expect(layer.rates.dtype == torch.bfloat16, "rates of a state-space layer are not in bfloat16")
    expect(is_silu(module.activation), "a state-space layer has an unknown activation")
    factors = _read_factors(module, outputs, channels)
    bias = module.dt_bias.detach().float()
    if layer.rates_bias is not None:
        is_plain = float(getattr(module, "ssm_in_multiplier", 1)) == 1
        expect(is_plain, "a bias of a state-space layer is not scaled as its inputs are")
        bias = bias + layer.rates_bias.float() * factors.rate
    low, high = module.time_step_limit
    return StateSpaceParts(
        module=module,
        heads=heads,
        groups=groups,
        dim=dim,
        size=size,
        input=layer.packed,
        output=output,
        rates=layer.rates,
        rate_bias=bias,
        limits=(float(low), float(high)),
        decay=-module.A_log.detach().float().exp(),
        skip=module.D.detach().float(),
        taps=taps,
        norm=norm,
        factors=factors,
    )


def _read_factors(module: Any, outputs: int, channels: int) -> Factors:
    """Return the factors of projected numbers, of which Falcon-H1 has a vector."""
    vector = getattr(module, "mup_vector", None)
    by_input = float(getattr(module, "ssm_in_multiplier", 1.0))
    if vector is None:
        expect(by_input == 1, "inputs of a state-space layer are scaled in an unknown way")
        return Factors(1.0, None, 1.0)
    factors = vector.detach().float().flatten() * by_input
    gate, convolved, rate = factors.split([outputs, channels, len(factors) - outputs - channels])
    is_even = bool((gate == gate[0]).all() and (rate == rate[0]).all())
    expect(is_even, "heads of a state-space layer have factors of their own")
    return Factors(float(gate[0]), convolved, float(rate[0]))


@torch.inference_mode()
def _read_gated_norm(module: Any, size: int) -> GatedNorm:
    """Return a norm of all outputs or of equal parts of them. Raises Unrecognised."""
    weight = module.weight.detach().float()
    expect(weight.shape == (size,), "the norm of a state-space layer has an unexpected width")
    span = int(getattr(module, "group_size", size // getattr(module, "n_groups", 1)))
    expect(size % span == span % _MULTIPLE == 0, "a norm takes no multiple of 16 numbers")
    epsilon = float(module.variance_epsilon)
    draw = torch.Generator().manual_seed(4)
    x, gate = torch.randn(2, 1, 4, size, generator=draw).unbind()

    def normalize(rows: Tensor) -> Tensor:
        parts = rows.view(*rows.shape[:-1], -1, span)
        result: Tensor = rms_norm(parts, (span,), eps=epsilon).view_as(rows) * weight
        return result

    answer = module(x, gate)
    forms = {False: normalize(x * silu(gate)), True: normalize(x) * silu(gate)}
    for comes_first, expected in forms.items():
        if torch.allclose(answer, expected, rtol=_CLOSE, atol=_CLOSE):
            norm = NormParts(weight, None, epsilon, centers=False)
            return GatedNorm(norm, span, comes_first)
    raise Unrecognised("the norm of a state-space layer is not known")
