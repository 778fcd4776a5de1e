"""Steps of every architecture on a fake GPU: no step waits for the device, kernels accept their
arguments, and a layer starts at most as many kernels as MODELS says."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from tests.workers.engine.backends.cuda.without_gpu import fake_cuda
from workers.engine.backends.cuda.kv_cache import Way

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

INDEXED = {"index_topk": 64, "index_n_heads": 16, "index_head_dim": 16}

MODELS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "arcee": (49, 18, {}),
    "cohere": (53, 33, {}),
    "cohere2": (49, 33, {}),
    "deepseek_v2": (88, 52, {**LATENT, "topk_method": "greedy"}),
    "deepseek_v3": (103, 66, LATENT),
    "ernie4_5": (59, 17, {}),
    "ernie4_5_moe": (83, 41, {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32}),
    "exaone4": (63, 22, {}),
    "gemma": (55, 18, {}),
    "gemma2": (75, 21, {}),
    "gemma3_text": (95, 22, {}),
    "gemma4_text": (119, 47, {}),
    "glm": (55, 17, {}),
    "glm4": (71, 19, {}),
    "glm4_moe": (81, 46, ROUTED),
    "gpt2": (27, 24, {}),
    "gpt_neox": (34, 19, {}),
    "gpt_oss": (79, 45, MIXTRAL),
    "granite": (52, 20, {}),
    "granitemoe": (71, 39, MIXTRAL),
    "helium": (56, 18, {}),
    "hunyuan_v1_dense": (66, 21, {}),
    "llama": (50, 18, {}),
    "llama4_text": (74, 44, MIXTRAL),
    "ministral": (50, 18, {}),
    "ministral3": (58, 27, {}),
    "mistral": (50, 18, {"sliding_window": 1024}),
    "mixtral": (70, 38, MIXTRAL),
    "nemotron": (37, 22, {}),
    "olmo": (40, 24, {}),
    "olmo2": (67, 21, {}),
    "olmo3": (69, 23, {}),
    "olmoe": (84, 38, QWEN_MOE),
    "opt": (24, 21, {}),
    "phi": (42, 30, {}),
    "phi3": (51, 17, {}),
    "qwen2": (50, 18, {}),
    "qwen2_moe": (77, 44, {**QWEN_MOE, "shared_expert_intermediate_size": 32}),
    "qwen3": (66, 20, {}),
    "qwen3_moe": (84, 38, QWEN_MOE),
    "seed_oss": (52, 20, {}),
    "smollm3": (47, 18, {}),
    "stablelm": (37, 24, {}),
    "starcoder2": (34, 21, {}),
}
"""By model type: the most kernels of a decode step with four layers, divided by four, without and
with fusion; options."""

SPARSE: dict[str, tuple[int, int, dict[str, Any]]] = {
    "deepseek_v32": (136, 179, {**LATENT, **INDEXED}),
    "glm_moe_dsa": (140, 183, {**LATENT, **INDEXED}),
    "minimax_m3_vl_text": (130, 206, {
        **MIXTRAL, **INDEXED, "index_n_heads": 2, "index_block_size": 32, "index_topk_blocks": 4,
        "shared_intermediate_size": 32,
        "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
    }),
}  # fmt: skip
"""Models with an indexer: the most kernels of a decode step with four layers, divided by four, with
our kernels and without."""

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


@pytest.mark.parametrize(
    ("way", "block_size", "fuses"), [(Way.SPLIT, 16, True), (Way.FLASH, 256, False)]
)
@pytest.mark.parametrize("model_type", MODELS)
def test_no_step_waits(
    fake: ProcessPoolExecutor, model_type: str, way: Way, block_size: int, fuses: bool
) -> None:
    *most, options = MODELS[model_type]
    found = fake.submit(
        fake_cuda.study, model_type, options, [way], block_size, fuses=fuses
    ).result()
    assert not found.waits
    if model_type in GATHERED[way]:
        assert set(found.ways) <= {way.name, "GATHERED"}
    else:
        assert found.ways == [way.name]
        assert found.decode_kernels <= most[fuses] * found.layers


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("model_type", SPARSE)
def test_no_step_waits_for_what_an_indexer_chooses(
    fake: ProcessPoolExecutor, model_type: str, ours: bool
) -> None:
    *most, options = SPARSE[model_type]
    ways, block_size = ([Way.SPLIT, Way.LATENTS], 16) if ours else ([Way.FLASH], 256)
    run = fake.submit(fake_cuda.study, model_type, options, ways, block_size, fuses=ours)
    found = run.result()
    assert not found.waits
    assert set(found.ways) & {"GATHERED", "LATENTS"}  # so no step is captured
    assert found.decode_kernels <= most[not ours] * 4


def test_large_shapes_start_as_many_kernels(fake: ProcessPoolExecutor) -> None:
    options = {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "num_hidden_layers": 80,
    }  # fmt: skip
    found = fake.submit(fake_cuda.study, "llama", options, [Way.SPLIT], 16, fuses=True).result()
    assert (found.layers, found.waits) == (80, [])
    assert found.decode_kernels <= 13.25 * 80


def test_frequencies_that_follow_the_batch_are_noticed(fake: ProcessPoolExecutor) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    options = {"rope_parameters": rope, "max_position_embeddings": fake_cuda.MAX_LEN // 2}
    found = fake.submit(fake_cuda.study, "llama", options, [Way.SPLIT], 16, fuses=True).result()
    assert "reads values back" in found.waits[0]


def test_frequencies_that_no_sequence_changes_are_not_asked_for(fake: ProcessPoolExecutor) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    options = {"rope_parameters": rope}
    found = fake.submit(fake_cuda.study, "llama", options, [Way.SPLIT], 16, fuses=True).result()
    assert not found.waits


def test_an_upload_that_waits_is_noticed(fake: ProcessPoolExecutor) -> None:
    found = fake.submit(fake_cuda.study, "phimoe", MIXTRAL, [Way.SPLIT], 16, fuses=True).result()
    assert "a copy of (8,) to cuda:0 waits" in found.waits[0]
    assert "modeling_rope_utils" in found.waits[0] or "phimoe" in found.waits[0]
