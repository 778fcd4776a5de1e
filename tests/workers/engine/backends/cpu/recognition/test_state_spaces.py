"""What is read of the state-space layers of Mamba 2, and which of them are not computed in C."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer, compute_mup_vector
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import (
    GraniteMoeHybridMambaLayer,
)
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer

from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.packed_linear import pack_linears
from workers.engine.backends.cpu.recognition.parts import Unrecognised
from workers.engine.backends.cpu.recognition.state_spaces import StateSpaceParts, read_state_space

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")

SIZES: dict[str, Any] = {
    "hidden_size": 64, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16,
    "mamba_n_groups": 2, "mamba_expand": 2,
}  # fmt: skip
GRANITE: dict[str, Any] = {"layer_types": ["mamba"], "num_hidden_layers": 1, **SIZES}
NEMOTRON: dict[str, Any] = {
    "hidden_size": 64, "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16,
    "n_groups": 2, "layers_block_type": ["mamba"], "time_step_min": 0.002,
}  # fmt: skip


def granite(**options: Any) -> Any:
    return packed(GraniteMoeHybridMambaLayer, "granitemoehybrid", {**GRANITE, **options})


def nemotron(**options: Any) -> Any:
    return packed(NemotronHMamba2Mixer, "nemotron_h", {**NEMOTRON, **options})


def falcon(**options: Any) -> Any:
    return packed(FalconH1Mixer, "falcon_h1", {**SIZES, "mamba_d_ssm": 128, **options})


def packed(kind: Any, model_type: str, options: dict[str, Any]) -> Any:
    """A layer with random weights, whose linear layers are packed."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **options)
    layer = kind(config, layer_idx=0).to(torch.bfloat16)
    if kind is FalconH1Mixer:
        layer.register_buffer("mup_vector", compute_mup_vector(config), persistent=False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.3)
    pack_linears(layer)
    return layer


def read(layer: Any) -> StateSpaceParts:
    return read_state_space(layer)


@pytest.mark.parametrize("make", [granite, nemotron, falcon])
def test_sizes_and_rates_are_read(make: Callable[..., Any]) -> None:
    layer = make()
    parts = read(layer)
    assert (parts.heads, parts.groups, parts.dim, parts.size) == (4, 2, 32, 16)
    assert (parts.input.out_features, parts.width) == (128 + 128 + 2 * 2 * 16, 324)
    assert parts.taps.weight.shape == (4, 192)
    assert torch.equal(parts.decay, -layer.A_log.float().exp())
    assert torch.equal(parts.rate_bias, layer.dt_bias.float())
    assert parts.limits == (0.002 if make is nemotron else 0.0, math.inf)


@pytest.mark.parametrize(("make", "span"), [(granite, 64), (nemotron, 64)])
def test_gated_outputs_are_normalized_by_group(make: Callable[..., Any], span: int) -> None:
    norm = read(make()).norm
    assert norm is not None
    assert (norm.span, norm.comes_first) == (span, False)


@pytest.mark.parametrize("comes_first", [False, True])
def test_a_norm_may_come_before_the_gates(comes_first: bool) -> None:
    norm = read(falcon(mamba_rms_norm=True, mamba_norm_before_gate=comes_first)).norm
    assert norm is not None
    assert (norm.span, norm.comes_first) == (64, comes_first)
    assert read(falcon(mamba_rms_norm=False)).norm is None


def test_factors_of_projected_numbers_are_read() -> None:
    factors = read(
        falcon(ssm_multipliers=[2.0, 3.0, 5.0, 7.0, 11.0], ssm_in_multiplier=0.5)
    ).factors
    assert (factors.gate, factors.rate) == (1.0, 5.5)
    expected = [1.5] * 128 + [2.5] * 32 + [3.5] * 32
    assert factors.convolved is not None
    assert factors.convolved.tolist() == expected


def test_a_bias_of_rates_is_added_to_that_of_the_layer() -> None:
    layer = granite(mamba_proj_bias=True)
    expected = layer.dt_bias.float() + layer.in_proj.rates_bias.float()
    assert torch.equal(read(layer).rate_bias, expected)


def mamba_1() -> Any:
    return packed(MambaMixer, "mamba", {"hidden_size": 64, "state_size": 16})


def uneven_factors() -> Any:
    layer = falcon()
    layer.mup_vector[..., -1] = 3.0
    return layer


def norm_of_something_else() -> Any:
    layer = granite()

    class Doubled(nn.Module):
        def __init__(self, norm: Any) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon
            self.group_size, self.own = norm.group_size, (norm,)

        def forward(self, x: Any, gate: Any) -> Any:
            return 2 * self.own[0](x, gate)

    layer.norm = Doubled(layer.norm)
    return layer


def another_part() -> Any:
    layer = granite()
    layer.more = nn.Linear(32, 32)
    return layer


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: granite(mamba_d_state=24), "not packed|no multiple of 16"),
        (lambda: granite(hidden_act="gelu"), "unknown activation"),
        (lambda: falcon(mamba_proj_bias=True, ssm_in_multiplier=2.0), "not scaled"),
        (mamba_1, "not that of Mamba 2"),
        (uneven_factors, "factors of their own"),
        (norm_of_something_else, "norm"),
        (another_part, "has \\['more'\\] too"),
    ],
)
def test_other_layers_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(Unrecognised, match=reason):
        read(make())
