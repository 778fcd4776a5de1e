"""Linear layers whose bfloat16 weights are laid out once for the CPU's matrix kernels: our own in
C where available, which also take weights rounded to int8 or int4, else oneDNN's."""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from workers.engine.backends.base.linear import LinearLayer
from workers.engine.backends.cpu.layers.direct_weights import LayerName
from workers.engine.backends.cpu.layers.experts import (
    PackedExperts,
    PackedScaledExperts,
    takes_scaled,
)
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.linear import Int4Linear, Int8Linear, TiledLinear
from workers.engine.backends.cpu.layers.rated_linear import RatedLinear, count_rates
from workers.engine.compat import has_onednn_bfloat16, multiply_reordered, reorder_linear_weight

_ROUNDED = {"int8": Int8Linear, "int4": Int4Linear}
_PLAIN = ("FalconLinear",)
"""Subclasses of ``nn.Linear`` that compute the same."""
_RATES = ("in_proj_a", "in_proj_b", "in_proj_ba")
"""Names of small layers of gated delta networks. To round the rates at which a state decays would
change all later tokens."""
_ROUTER, _CHOOSERS = "Router", ("wg",)
"""The end of the names of classes that choose experts by a small layer, and names of the layer."""
_BYTES = {"int8": 1.0, "int4": 0.5 + 2 / 32}
"""Bytes per weight, with its part of the scales and minima of its group."""


def get_bytes_per_weight(dtype: str, is_head: bool) -> float:
    """Return bytes per weight in a layer that is packed as int8 or int4."""
    return _BYTES[_kind(dtype, is_head)]


def _kind(dtype: str, is_head: bool) -> str:
    """Where other layers get int4, the output layer gets int8: rounding it harms text more."""
    return "int8" if dtype == "int4" and is_head else dtype


class PackedLinear(LinearLayer):
    """``nn.Linear`` over a weight reordered by oneDNN. A plain call repeats the reordering, which
    for few rows costs as much as the product; without it, they run 1.5 to 3 times faster."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._packed = reorder_linear_weight(linear.weight.detach())
        self.weight = linear.weight.detach().to("meta")
        """Only for models that ask for the type of a layer's weight."""

    def forward(self, hidden: Tensor) -> Tensor:
        return multiply_reordered(hidden, self._packed, self.bias)


def pack_linears(
    model: nn.Module, dtype: str = "bfloat16", kept: Collection[LayerName] = ()
) -> int:
    """Replace every bfloat16 ``nn.Linear`` and ``Conv1D`` of ``model``, and experts, in place;
    return how many. The ``kept`` ones stay.

    Replaces none if neither library has a kernel for this CPU. A subclass of ``nn.Linear`` may
    compute something else and is left alone. With ``dtype`` int8 or int4, the weights of layers
    whose shape allows it are rounded; with int4, those of the output layer only to int8.
    """
    count = 0
    get_head = getattr(model, "get_output_embeddings", lambda: None)
    head = get_head()
    for parent in model.modules():
        for name, child in parent.named_children():
            if (experts := _pack_experts(child, dtype)) is not None:
                setattr(parent, name, experts)
                count += 1
                continue
            linear = _make_linear(child)
            if linear is None or is_read_unpacked(parent, name) or (type(parent), name) in kept:
                continue
            rates = count_rates(parent, name)
            if (packed := pack_linear(linear, dtype, child is head, rates)) is not None:
                setattr(parent, name, packed)
                count += 1
    return count


def is_read_unpacked(parent: nn.Module, name: str) -> bool:
    """Return whether the C forward reads the weight of a layer in ``parent`` as it is."""
    return name in (*_RATES, *_CHOOSERS) or type(parent).__name__.endswith(_ROUTER)


def _make_linear(module: nn.Module) -> nn.Linear | None:
    """Return a linear layer itself, or what GPT-2 has in place of one: its weight is [in, out]."""
    if type(module) is nn.Linear or type(module).__name__ in _PLAIN:
        assert isinstance(module, nn.Linear)
        return module
    if type(module) is not Conv1D:
        return None
    inputs, outputs = module.weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = nn.Parameter(module.weight.detach().T, requires_grad=False)
    linear.bias = module.bias
    return linear


def _pack_experts(module: nn.Module, dtype: str) -> PackedExperts | None:
    if load_library() is None:
        return None
    packs = PackedScaledExperts if takes_scaled(module) else PackedExperts
    return packs.pack(module, _ROUNDED.get(dtype, TiledLinear))


def pack_linear(
    linear: nn.Linear, dtype: str, is_head: bool, rates: int = 0
) -> PackedLinear | TiledLinear | RatedLinear | None:
    """Pack one layer as :func:`pack_linears` does; None for a layer that it leaves alone. Its last
    ``rates`` outputs are those of :class:`RatedLinear`."""
    dtype = _kind(dtype, is_head)
    if linear.weight.dtype != torch.bfloat16 or linear.out_features == 1:  # such as a gate
        return None
    kind = _ROUNDED.get(dtype, TiledLinear)
    if rates and (rated := RatedLinear.pack(linear, kind, rates)) is not None:
        return rated
    if (tiled := kind.pack(linear, is_head)) is not None:
        return tiled
    return PackedLinear(linear) if has_onednn_bfloat16() else None
