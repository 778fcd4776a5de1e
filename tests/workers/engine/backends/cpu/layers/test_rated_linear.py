"""The input layers of Mamba 2, whose last outputs are not rounded."""

import pytest
import torch
from torch import nn

from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.linear import Int4Linear, Int8Linear, TiledLinear
from workers.engine.backends.cpu.layers.packed_linear import pack_linears
from workers.engine.backends.cpu.layers.rated_linear import RatedLinear, count_rates

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")

RATES = 6


class Mixer(nn.Module):
    """The layers of Mamba 2 that :func:`count_rates` looks at."""

    def __init__(self, bias: bool = False, outputs: int = 96 + RATES) -> None:
        super().__init__()
        self.in_proj = nn.Linear(64, outputs, bias=bias)
        self.out_proj = nn.Linear(96, 64, bias=False)
        self.dt_bias = nn.Parameter(torch.zeros(RATES))
        self.to(torch.bfloat16)


def whole_and_rated(kind: type[TiledLinear], bias: bool) -> tuple[nn.Linear, RatedLinear]:
    torch.manual_seed(0)
    layer = Mixer(bias).in_proj
    rated = RatedLinear.pack(layer, kind, RATES)
    assert rated is not None
    return layer, rated


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [TiledLinear, Int8Linear, Int4Linear])
@torch.inference_mode()
def test_rates_are_those_of_the_original_layer(kind: type[TiledLinear], bias: bool) -> None:
    layer, rated = whole_and_rated(kind, bias)
    hidden = torch.randn(2, 5, 64).to(torch.bfloat16)
    answer, expected = rated(hidden), layer(hidden)
    assert answer.shape == expected.shape
    assert (rated.in_features, rated.out_features) == (64, 96 + RATES)
    torch.testing.assert_close(answer[..., -RATES:], expected[..., -RATES:])
    error = (answer - expected)[..., :-RATES].float().norm()
    allowed = {TiledLinear: 0.02, Int8Linear: 0.05, Int4Linear: 0.3}[kind]
    assert error < allowed * expected[..., :-RATES].float().norm()


@torch.inference_mode()
def test_the_other_outputs_are_rounded() -> None:
    layer, rated = whole_and_rated(Int4Linear, bias=True)
    hidden = torch.randn(5, 64).to(torch.bfloat16)
    alone = nn.Linear(64, 96, dtype=torch.bfloat16)
    alone.weight.copy_(layer.weight[:96])
    alone.bias.copy_(layer.bias[:96])
    packed = Int4Linear.pack(alone)
    assert packed is not None
    assert torch.equal(rated(hidden)[:, :96], packed(hidden))


def test_a_layer_without_kernels_is_left_alone() -> None:
    layer = Mixer(outputs=90 + RATES).in_proj
    assert RatedLinear.pack(layer, TiledLinear, RATES) is None


def test_packing_finds_the_rates() -> None:
    model = nn.ModuleDict({"mixer": Mixer()})
    mixer = model["mixer"]
    assert (count_rates(mixer, "in_proj"), count_rates(mixer, "out_proj")) == (RATES, 0)
    assert count_rates(model, "in_proj") == 0
    assert pack_linears(model, "int8") == 2
    assert isinstance(mixer.in_proj, RatedLinear)
    assert isinstance(mixer.in_proj.packed, Int8Linear)
    assert isinstance(mixer.out_proj, Int8Linear)
