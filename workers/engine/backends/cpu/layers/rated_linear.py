"""Linear layers some of whose outputs decide how fast a state decays."""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from workers.engine.backends.base.linear import LinearLayer
from workers.engine.backends.cpu.layers.linear import TiledLinear


class RatedLinear(LinearLayer):
    """The input layer of Mamba 2: packed, but for its last outputs, which stay in bfloat16. To
    round the rates of a state would change all later tokens."""

    def __init__(self, packed: TiledLinear, rates: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = packed
        self.rates = rates
        """[rates, inputs]"""
        self.rates_bias = bias
        self.in_features = packed.in_features
        self.out_features = packed.out_features + len(rates)
        self.weight = torch.empty(
            self.out_features, self.in_features, dtype=rates.dtype, device="meta"
        )
        """Only for models that ask for the type of a layer's weight."""

    @classmethod
    def pack(cls, layer: nn.Linear, kind: type[TiledLinear], num_rates: int) -> Self | None:
        """Pack ``layer`` without its last ``num_rates`` outputs as ``kind``. None where there are
        no kernels, or none for this shape."""
        weight = layer.weight.detach()
        bias = None if layer.bias is None else layer.bias.detach()
        outputs = len(weight) - num_rates
        others = nn.Linear(weight.shape[1], outputs, bias=bias is not None, device="meta")
        others.weight = nn.Parameter(weight[:outputs], requires_grad=False)
        if bias is not None:
            others.bias = nn.Parameter(bias[:outputs], requires_grad=False)
        packed = kind.pack(others)
        if packed is None:
            return None
        last = None if bias is None else bias[outputs:].clone()
        return cls(packed, weight[outputs:].clone(), last)

    def forward(self, hidden: Tensor) -> Tensor:
        rates = linear(hidden, self.rates, self.rates_bias)
        return torch.cat([self.packed(hidden), rates], dim=-1)


def count_rates(parent: Any, name: str) -> int:
    """Return how many of the last outputs of the layer ``name`` of ``parent`` are rates."""
    bias = getattr(parent, "dt_bias", None)
    has_rates = name == "in_proj" and isinstance(bias, Tensor) and bias.dim() == 1
    return len(bias) if has_rates and bias is not None else 0
