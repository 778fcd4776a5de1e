"""Steps of every architecture on a fake GPU: no step waits for the device, kernels accept their
arguments, and a layer starts at most as many kernels as MODELS says."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from tests.workers.engine.cuda import fake_cuda
from workers.engine.cuda.kv_cache import Way

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile a device guard"),
]

MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **ROUTED, "n_group": 2, "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "head_dim": 8,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}  # fmt: skip

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "arcee": (70, {}),
    "cohere": (74, {}),
    "cohere2": (68, {}),
    "deepseek_v2": (118, {**LATENT, "topk_method": "greedy"}),
    "deepseek_v3": (143, LATENT),
    "ernie4_5": (84, {}),
    "ernie4_5_moe": (115, {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32}),
    "exaone4": (82, {}),
    "gemma": (76, {}),
    "gemma2": (96, {}),
    "gemma3_text": (116, {}),
    "gemma4_text": (145, {}),
    "glm": (88, {}),
    "glm4": (104, {}),
    "glm4_moe": (119, ROUTED),
    "gpt2": (40, {}),
    "gpt_neox": (63, {}),
    "gpt_oss": (109, MIXTRAL),
    "granite": (73, {}),
    "granitemoe": (101, MIXTRAL),
    "helium": (81, {}),
    "hunyuan_v1_dense": (87, {}),
    "llama": (71, {}),
    "llama4_text": (91, MIXTRAL),
    "ministral": (71, {}),
    "ministral3": (81, {}),
    "mistral": (71, {"sliding_window": 1024}),
    "mixtral": (100, MIXTRAL),
    "nemotron": (66, {}),
    "olmo": (61, {}),
    "olmo2": (88, {}),
    "olmo3": (91, {}),
    "olmoe": (114, QWEN_MOE),
    "opt": (36, {}),
    "phi": (71, {}),
    "phi3": (86, {}),
    "qwen2": (71, {}),
    "qwen2_moe": (107, {**QWEN_MOE, "shared_expert_intermediate_size": 32}),
    "qwen3": (87, {}),
    "qwen3_moe": (114, QWEN_MOE),
    "seed_oss": (73, {}),
    "smollm3": (66, {}),
    "stablelm": (66, {}),
    "starcoder2": (55, {}),
}
"""By model type: the most kernels of a decode step with four layers, divided by four; options."""

GATHERED = {
    Way.SPLIT: {"gemma4_text": "layers with heads of 512"},
    Way.FLASH: {
        "deepseek_v2": "unequal heads",
        "deepseek_v3": "unequal heads",
        "gemma2": "capped scores",
        "gemma4_text": "layers with heads of 512",
        "gpt_oss": "sinks",
        "llama4_text": "chunks, where they are shorter than the context",
    },
}
"""Models with layers that gather their pages, and why."""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with fake_cuda.start(tmp_path_factory.mktemp("guard")) as executor:
        yield executor


@pytest.mark.parametrize(("way", "block_size"), [(Way.SPLIT, 16), (Way.FLASH, 256)])
@pytest.mark.parametrize("model_type", MODELS)
def test_no_step_waits(
    fake: ProcessPoolExecutor, model_type: str, way: Way, block_size: int
) -> None:
    most, options = MODELS[model_type]
    found = fake.submit(fake_cuda.study, model_type, options, [way], block_size).result()
    assert not found.waits
    if model_type in GATHERED[way]:
        assert set(found.ways) <= {way.name, "GATHERED"}
    else:
        assert found.ways == [way.name]
        assert found.decode_kernels <= most * found.layers


def test_large_shapes_start_as_many_kernels(fake: ProcessPoolExecutor) -> None:
    options = {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "num_hidden_layers": 80,
    }  # fmt: skip
    found = fake.submit(fake_cuda.study, "llama", options, [Way.SPLIT], 16).result()
    assert (found.layers, found.waits) == (80, [])
    assert found.decode_kernels <= 67 * 80


def test_frequencies_that_follow_the_batch_are_noticed(fake: ProcessPoolExecutor) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    options = {"rope_parameters": rope}
    found = fake.submit(fake_cuda.study, "llama", options, [Way.SPLIT], 16).result()
    assert "reads values back" in found.waits[0]


def test_an_upload_that_waits_is_noticed(fake: ProcessPoolExecutor) -> None:
    found = fake.submit(fake_cuda.study, "phimoe", MIXTRAL, [Way.SPLIT], 16).result()
    assert "a copy of (8,) to cuda:0 waits" in found.waits[0]
    assert "modeling_rope_utils" in found.waits[0] or "phimoe" in found.waits[0]
