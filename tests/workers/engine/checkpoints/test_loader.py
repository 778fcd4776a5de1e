import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.build import build_engine
from workers.engine.checkpoints.loader import load_model
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.exceptions import ContextLengthExceeded, UnsupportedModel

SHAPE = {key: value for key, value in LLAMA.items() if key != "model_type"}
CONFIG = EngineConfig(
    dtype="float32", max_num_seqs=4, max_num_batched_tokens=20, block_size=4, kv_cache_bytes=2**22
)

SUPPORTED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 7, "head_dim": 16},
    "qwen3": {"head_dim": 16},
    "gemma2": {
        "head_dim": 16,
        "sliding_window": 7,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
        "tie_word_embeddings": False,
    },
    "gpt_neox": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                "rope_parameters": None, "sliding_window": 7},
    "llama4_text": {"num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 2,
                    "attention_chunk_size": 8, "floor_scale": 16},
    "qwen2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                  "shared_expert_intermediate_size": 32},
    "deepseek_v3": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                    "moe_intermediate_size": 32, "q_lora_rank": 32, "kv_lora_rank": 16,
                    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
                    "first_k_dense_replace": 1, "num_key_value_heads": 4},
}  # fmt: skip

GENERAL: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": ({"max_position_embeddings": 512}, "stores no keys and values"),
    "falcon": ({"alibi": True}, "Falcon with ALiBi does not run over pages"),
    "rwkv": ({"max_position_embeddings": 512}, "more than keys and values"),
}


def save(folder: Path, model_type: str, options: dict[str, Any]) -> Path:
    return save_model(folder, {**SHAPE, **options, "model_type": model_type})


@pytest.mark.represented_by("deepseek_v3")
@pytest.mark.parametrize("model_type", sorted(SUPPORTED))
def test_architectures_run_without_code_of_their_own(tmp_path: Path, model_type: str) -> None:
    path = save(tmp_path, model_type, SUPPORTED[model_type])
    engine = build_engine(path, CONFIG)
    prompts = [greedy.prompt(length, salt=length) for length in (1, 6, 30)]
    params = SamplingParams(max_tokens=10, temperature=0)
    completions = engine.generate(
        [Request((p,), params, request_id=str(i)) for i, p in enumerate(prompts)]
    )
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.choices[0].token_ids == greedy.generate(path, prompt, 10)


@pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like
@pytest.mark.parametrize("model_type", sorted(GENERAL))
def test_what_pages_cannot_do_runs_the_general_way(
    tmp_path: Path, model_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    options, reason = GENERAL[model_type]
    path = save(tmp_path, model_type, options)
    assert build_engine(path, CONFIG).forward == "general"
    assert reason in caplog.text


def test_a_model_that_only_seems_to_run_runs_the_general_way(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers.models.llama import modeling_llama

    scaled = modeling_llama.LlamaAttention.forward

    def forgetful(self: Any, *args: Any, **options: Any) -> Any:
        """Attends differently when it does not go through the attention interface."""
        output, weights = scaled(self, *args, **options)
        return (output * 1.5 if weights is not None else output), weights

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forgetful)
    assert build_engine(tiny_llama, CONFIG).forward == "general"
    assert "differs from its own attention" in caplog.text


def test_a_checkpoint_without_some_tensors_is_refused(tmp_path: Path) -> None:
    path = save_model(tmp_path)
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight: "):
        build_engine(path, CONFIG)


@pytest.mark.parametrize("length", [5, 5000])
@pytest.mark.parametrize("settings", [{}, {"quantization_config": {"quant_method": "fp8"}}])
def test_a_file_that_is_cut_off_is_refused_by_name(
    tmp_path: Path, length: int, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = save_model(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | settings))
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(
        UnsupportedModel, match=r"model\.safetensors is not a whole safetensors file"
    ):
        read_model(path, torch.float32, "eager")
    assert "attention function" not in caplog.text, "it was read a second time"


def test_a_type_that_generates_no_text_is_refused(tmp_path: Path) -> None:
    path = save_model(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))
    with pytest.raises(UnsupportedModel, match="vit cannot be read as a causal language model"):
        build_engine(path, CONFIG)


def test_the_context_is_the_models_unless_configured_smaller(tiny_llama: Path) -> None:
    make_for_cpu = replace(CONFIG, device="cpu")
    assert load_model(tiny_llama, make_for_cpu).max_model_len == 512
    assert load_model(tiny_llama, replace(make_for_cpu, max_model_len=100)).max_model_len == 100
    with pytest.raises(UnsupportedModel, match=r"513 exceeds .* context of 512: .* with YaRN"):
        load_model(tiny_llama, replace(make_for_cpu, max_model_len=513))


@pytest.mark.represented_by("rope_parameters")
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_stretched_positions_allow_a_longer_context(tmp_path: Path, name: str) -> None:
    """As Qwen documents YaRN: with the length that the model was trained with."""
    path = save_model(tmp_path, {**LLAMA, "max_position_embeddings": 64})
    yarn = {"type": "yarn", "rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
            "original_max_position_embeddings": 32}  # fmt: skip
    config = json.loads((path / "config.json").read_text())
    del config["rope_parameters"]
    (path / "config.json").write_text(json.dumps({**config, name: yarn}))
    longer = replace(CONFIG, device="cpu", max_model_len=128)
    engine = build_engine(path, longer)
    prompt = greedy.prompt(100)
    params = SamplingParams(max_tokens=20, temperature=0)
    [done] = engine.generate([Request((prompt,), params, request_id="long")])
    assert done.choices[0].token_ids == greedy.generate(path, prompt, 20)
    assert load_model(path, replace(longer, max_model_len=None)).max_model_len == 64
    with pytest.raises(UnsupportedModel, match="context of 128"):
        load_model(path, replace(longer, max_model_len=129))


def test_a_long_context_takes_tables_for_what_the_cache_can_hold(tmp_path: Path) -> None:
    """Llama 4 Scout states a context of 10 million tokens."""
    options = {**LLAMA, "head_dim": 64, "intermediate_size": 128}
    path = save_model(tmp_path, {**options, "max_position_embeddings": 10_000_000})
    config = replace(CONFIG, device="cpu", dtype="bfloat16", block_size=16)
    loaded = load_model(path, config)
    assert (loaded.forward, loaded.max_model_len) == ("c", 10_000_000)
    assert loaded.max_positions == 8192  # 4 MiB are room for 4096 tokens
    engine = build_engine(path, config)
    over = Request((greedy.prompt(20),), SamplingParams(max_tokens=5000), request_id="over")
    with pytest.raises(ContextLengthExceeded, match="the KV cache of its worker holds no more"):
        engine.generate([over])


def test_stop_token_ids_make_up_for_files_without_an_end_token(tmp_path: Path) -> None:
    path = save_model(tmp_path)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        values = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps({**values, "eos_token": None, "eos_token_id": None}))
    with pytest.raises(UnsupportedModel, match=r"no end token: set stop_token_ids in models\.toml"):
        load_model(path, replace(CONFIG, device="cpu"))
    config = replace(CONFIG, device="cpu", stop_token_ids=(7,))
    engine = build_engine(path, config)
    assert engine.eos_token_ids == {7}
    params = SamplingParams(max_tokens=4, temperature=0)
    [done] = engine.generate(
        [Request((greedy.prompt(5),), params, grammar="start: /[ab]/", request_id="a")]
    )
    assert done.choices[0].finish_reason == "stop"


def test_every_end_of_sequence_id_counts(tiny_llama: Path, tmp_path: Path) -> None:
    path = save_model(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(path)
    model.generation_config.eos_token_id = [7, 9]
    model.save_pretrained(path)
    engine = build_engine(path, replace(CONFIG, stop_token_ids=(9, 11)))
    assert engine.eos_token_ids == {0, 7, 9, 11}


def test_a_cache_too_small_for_a_block_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="kv_cache_bytes"):
        build_engine(tiny_llama, EngineConfig(dtype="float32", kv_cache_bytes=100))
