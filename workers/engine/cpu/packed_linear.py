"""Linear layers whose bfloat16 weights are laid out once for the CPU's matrix kernels: ours in C
where they can be had, for which they may be rounded to int8, else oneDNN's."""

import torch
from torch import Tensor, nn

from workers.engine.cpu.linear import Int8Linear, TiledLinear


class PackedLinear(nn.Module):
    """``nn.Linear`` over a weight reordered by oneDNN; 1.5 to 3 times faster at few rows, where
    the reordering that every plain call repeats costs as much as the product."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self._packed, self.bias, "none", [], ""
        )
        return output


def pack_linears(model: nn.Module, quantize: bool = False) -> int:
    """Replace every bfloat16 ``nn.Linear`` of ``model`` in place; return how many.

    None where neither library has a kernel for this CPU. A subclass of ``nn.Linear`` may compute
    something else and is left alone. ``quantize`` rounds the weights that fit to int8.
    """
    count = 0
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear and (packed := _pack(child, quantize)) is not None:
                setattr(parent, name, packed)
                count += 1
    return count


def _pack(linear: nn.Linear, quantize: bool) -> PackedLinear | TiledLinear | None:
    if linear.weight.dtype != torch.bfloat16:
        return None
    if (tiled := (Int8Linear if quantize else TiledLinear).pack(linear)) is not None:
        return tiled
    has_kernel = torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return PackedLinear(linear) if has_kernel else None
