import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from workers.engine.backends.cpu.layers.packed_linear import PackedLinear, pack_linears

packs = pack_linears(nn.Sequential(nn.Linear(2, 2, dtype=torch.bfloat16))) == 1
needs_packing = pytest.mark.skipif(not packs, reason="this CPU has no bfloat16 kernel")


@needs_packing
@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_the_product_is_the_same(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias, dtype=torch.bfloat16)
    hidden = torch.randn(1, rows, 48, dtype=torch.bfloat16)
    packed = PackedLinear(linear)(hidden)
    torch.testing.assert_close(packed, linear(hidden), rtol=0.02, atol=0.02)


@needs_packing
def test_only_plain_bfloat16_layers_are_replaced() -> None:
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "plain": nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16)),
            "single": nn.Linear(4, 4),
            "special": Special(4, 4, dtype=torch.bfloat16),
        }
    )
    assert pack_linears(model) == 1
    assert isinstance(model["plain"][0], PackedLinear)  # type: ignore[index]
    assert type(model["single"]) is nn.Linear
    assert type(model["special"]) is Special


@needs_packing
@torch.inference_mode()
def test_layers_with_transposed_weights_are_replaced() -> None:
    torch.manual_seed(0)
    layer = Conv1D(96, 64).to(torch.bfloat16)
    layer.bias.copy_(torch.randn(96))
    hidden = torch.randn(3, 64, dtype=torch.bfloat16)
    expected = layer(hidden)
    model = nn.Sequential(layer)
    assert pack_linears(model) == 1
    torch.testing.assert_close(model(hidden), expected, rtol=0.02, atol=0.02)
