"""Packed experts and routers: what the modules of transformers answer, or nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama4.modeling_llama4 import Llama4TextMoe

from tests.workers.engine.backends.cpu.shapes import SHAPE
from workers.engine.backends.cpu.layers.experts import (
    Groups,
    PackedExperts,
    PackedScaledExperts,
    RouterParts,
)
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.linear import Int4Linear, Int8Linear, TiledLinear

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")

FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 5},
    "qwen3_moe": {"num_experts": 5, "moe_intermediate_size": 32, "norm_topk_prob": False},
    "gpt_oss": {"num_local_experts": 5},
    "glm4_moe": {"n_routed_experts": 5, "moe_intermediate_size": 32, "first_k_dense_replace": 0,
                 "routed_scaling_factor": 2.5},
    "ernie4_5_moe": {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 32,
                     "moe_layer_start_index": 0},
    "nemotron_h": {"layers_block_type": ["moe"], "n_routed_experts": 5, "moe_intermediate_size": 32,
                   "routed_scaling_factor": 2.5},
}  # fmt: skip
GROUPED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"topk_method": "group_limited_greedy", "v_head_dim": 32, "kv_lora_rank": 32},
    "deepseek_v3": {"v_head_dim": 32, "kv_lora_rank": 32},
}
ERRORS = {TiledLinear: 0.02, Int8Linear: 0.05, Int4Linear: 0.3}


def mixture_of(family: str, **sizes: Any) -> Any:
    """A layer's mixture, all of its weights random."""
    own = {**FAMILIES, **GROUPED}[family]
    options = {**SHAPE, **own, "num_experts_per_tok": 2, "num_hidden_layers": 1, **sizes}
    config = AutoConfig.for_model(family, **options, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    layer = model.get_decoder().layers[0]
    mixture = layer.mixer if family == "nemotron_h" else layer.mlp
    with torch.no_grad():
        for tensor in (*mixture.parameters(), *mixture.buffers()):
            tensor.normal_(0, 0.3)
    return mixture


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_packed_experts_answer_what_experts_do(family: str, kind: type[TiledLinear]) -> None:
    experts = mixture_of(family).experts
    packed = PackedExperts.pack(experts, kind)
    assert packed is not None
    rows = torch.randn(33, 192).to(torch.bfloat16)
    ids = torch.rand(33, 5).topk(2).indices
    weights = torch.rand(33, 2).to(torch.bfloat16)
    expected = experts(rows, ids, weights).float()
    error = (packed(rows, ids, weights).float() - expected).norm()
    assert error < ERRORS[kind] * expected.norm()


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_router_is_read(family: str) -> None:
    mixture = mixture_of(family)
    router = mixture.router if family == "gpt_oss" else mixture.gate
    parts = RouterParts.read(router)
    assert parts is not None
    corrects_sigmoids = family in {"glm4_moe", "nemotron_h"}
    assert (parts.sigmoid, parts.scale) == ((True, 2.5) if corrects_sigmoids else (False, 1.0))
    assert parts.normalizes == (family != "qwen3_moe")
    has_correction = corrects_sigmoids or family == "ernie4_5_moe"
    assert (parts.correction is not None) == has_correction
    rows = torch.randn(20, 192).to(torch.bfloat16)
    _, expected, ids = router(rows)
    torch.testing.assert_close(parts.weights(rows, ids), expected.float(), rtol=0.03, atol=1e-3)


@pytest.mark.parametrize(("family", "best"), [("deepseek_v2", 1), ("deepseek_v3", 2)])
@torch.inference_mode()
def test_a_router_of_groups_is_read(family: str, best: int) -> None:
    sizes = {"n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
             "first_k_dense_replace": 0, "moe_intermediate_size": 32}  # fmt: skip
    router = mixture_of(family, **sizes).gate
    parts = RouterParts.read(router)
    assert parts is not None
    assert parts.groups == Groups(4, 2, best)
    rows = torch.randn(40, 192).to(torch.bfloat16)
    assert torch.equal(parts.choose(rows), router(rows)[2].sort().values)


@torch.inference_mode()
def test_a_router_that_ignores_its_groups_is_read_without_them() -> None:
    sizes = {"n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
             "first_k_dense_replace": 0, "moe_intermediate_size": 32,
             "topk_method": "greedy"}  # fmt: skip
    parts = RouterParts.read(mixture_of("deepseek_v2", **sizes).gate)
    assert parts is not None
    assert parts.groups == Groups()


class _Doubled(nn.Module):
    """A router that gives twice the weight."""

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.router, self.weight, self.top_k = router, router.weight, router.top_k

    def forward(self, rows: Tensor) -> Any:
        logits, weights, ids = self.router(rows)
        return logits, 2 * weights, ids


def test_what_answers_something_else_is_not_known() -> None:
    mixture = mixture_of("mixtral")
    assert RouterParts.read(_Doubled(mixture.gate)) is None
    mixture.experts.act_fn = nn.Tanh()
    assert PackedExperts.pack(mixture.experts, TiledLinear) is None


def llama4_mixture() -> Any:
    config = AutoConfig.for_model(
        "llama4_text", **{**SHAPE, "num_local_experts": 5, "num_experts_per_tok": 2}
    )
    torch.manual_seed(0)
    mixture = Llama4TextMoe(config).to(torch.bfloat16)
    with torch.no_grad():
        for tensor in mixture.parameters():
            tensor.normal_(0, 0.3)
    return mixture


@pytest.mark.parametrize("kind", ERRORS)
@torch.inference_mode()
def test_packed_experts_of_scaled_rows_answer_what_they_do(kind: type[TiledLinear]) -> None:
    mixture = llama4_mixture()
    packed = PackedScaledExperts.pack(mixture.experts, kind)
    assert packed is not None
    rows = torch.randn(33, 192).to(torch.bfloat16)
    weights = mixture.router(rows)[0]
    scaled = (rows * weights.T[..., None]).flatten(0, 1)
    expected = mixture.experts(scaled).float()
    answer = packed(scaled).float()
    assert (answer - expected).norm() < ERRORS[kind] * expected.norm()
    assert not answer[weights.T.flatten() == 0].any()


@torch.inference_mode()
def test_a_router_that_weighs_inputs_is_read() -> None:
    router = llama4_mixture().router
    parts = RouterParts.read(router)
    assert parts is not None
    assert (parts.scales_inputs, parts.sigmoid, parts.normalizes) == (True, True, False)
    rows = torch.randn(50, 192).to(torch.bfloat16)
    expected = router(rows)[0].float()
    ids = expected.topk(2).indices
    assert torch.allclose(parts.weights(rows, ids), expected.gather(1, ids), atol=0.01)
