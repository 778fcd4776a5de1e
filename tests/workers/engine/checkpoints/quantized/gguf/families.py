"""Small random models of the architectures of GGUF files, stored as llama.cpp's converters do.

What a file holds is told here apart from what reads it, as the converters of
https://github.com/ggml-org/llama.cpp/tree/master/conversion write it.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import AutoConfig, AutoModelForCausalLM

from tests.workers.engine.checkpoints.quantized.gguf.small_files import SIZES, add_tokenizer
from tests.workers.engine.checkpoints.quantized.gguf.stored_weights import store


class Family(NamedTuple):
    """A model: its type and settings, and what a file of it says."""

    model_type: str
    options: dict[str, Any]
    metadata: dict[str, Any]


_ROPE = {"rope_type": "default", "rope_theta": 5000.0}
_HALF = {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}}
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0, "beta_fast": 32.0,
         "original_max_position_embeddings": 16, "beta_slow": 1.0}  # fmt: skip
_BASE_10000 = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_STORED_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16, "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_STORED_EXPERTS = {"expert_count": 4, "expert_used_count": 2}
_STORED_SMALL = {**_STORED_EXPERTS, "expert_feed_forward_length": 16}
_SHARED = {"shared_expert_intermediate_size": 24}
_STORED_SHARED = {"expert_shared_feed_forward_length": 24}
_DELTA_NET = {
    "num_hidden_layers": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, **_HALF,
}  # fmt: skip
_SECTIONS = {"rope_parameters": {
    **_HALF["rope_parameters"], "mrope_section": [1, 1, 0], "mrope_interleaved": True,
}}  # fmt: skip
_STORED_SECTIONS = {"rope.dimension_sections": [1, 1, 0, 0]}
_STORED_DELTA_NET = {
    "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2, "ssm.time_step_rank": 4,
    "ssm.inner_size": 16, "full_attention_interval": 4, "rope.dimension_count": 4,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "first_k_dense_replace": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": None,
}  # fmt: skip
_V3 = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "q_lora_rank": 16}
_STORED_LATENT = {
    "attention.head_count_kv": 1, "attention.key_length": 20, "attention.value_length": 16,
    "attention.kv_lora_rank": 16, "attention.key_length_mla": 12, "attention.value_length_mla": 8,
    "leading_dense_block_count": 1, "expert_used_count": 2, "expert_feed_forward_length": 16,
    "rope.dimension_count": 4,
}  # fmt: skip
_STORED_V3 = {
    **_STORED_LATENT, "expert_count": 8, "expert_group_count": 2, "expert_group_used_count": 1,
    "attention.q_lora_rank": 16, "expert_shared_count": 1, "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
}  # fmt: skip
_SCALES = {
    "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
}  # fmt: skip
_STORED_SCALES = {
    "attention.scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 2.0,
}  # fmt: skip
_MAMBA = {
    "num_hidden_layers": 4, "layer_types": ["mamba", "full_attention"] * 2, "mamba_n_heads": 8,
    "shared_intermediate_size": 24, "mamba_d_head": 8, "mamba_d_state": 16, **_SCALES,
    "head_dim": None, "position_embedding_type": "nope",
}  # fmt: skip
_STORED_MAMBA = {
    **_STORED_SCALES, "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.inner_size": 64,
    "ssm.time_step_rank": 8, "rope.scaling.finetuned": False, **_STORED_SHARED,
    "attention.head_count_kv": [0, 2, 0, 2],
}  # fmt: skip
_SHORT = {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4,
          "norm_eps": 1e-5, "head_dim": None}  # fmt: skip
_STORED_SHORT = {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]}
_WINDOWS = {"num_hidden_layers": 4, "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}  # fmt: skip
_STORED_WINDOWS = {"attention.sliding_window": 8,
                   "attention.sliding_window_pattern": [True, True, True, False]}  # fmt: skip
_GEMMA4 = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 8,
           "sliding_window": 8, "global_head_dim": 16}  # fmt: skip
_STORED_GEMMA4 = {
    "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "attention.key_length": 16,
    "attention.value_length": 16, "attention.sliding_window": 8, "attention.key_length_swa": 8,
    "rope.dimension_count": 16, "rope.dimension_count_swa": 8,
}  # fmt: skip
_LAYER_NORM = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
_NO_HEAD_SIZE = {"attention.key_length": None, "attention.value_length": None}
_NO_BASE = {"rope.freq_base": None}
_PADDED = {"pad_token_id": 0}

FAMILIES: dict[str, Family] = {
    "arcee": Family("arcee", {}, {"rope.dimension_count": 8}),
    "command-r": Family("cohere", {**_PADDED, "logit_scale": 0.25}, {**_LAYER_NORM,
                        "logit_scale": 0.25, "rope.scaling.type": "none"}),
    "deepseek2": Family("deepseek_v3", {**_LATENT, **_V3}, _STORED_V3),
    "deepseek2 yarn": Family("deepseek_v3", {**_LATENT, **_V3, "rope_parameters": {
        **_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}, {
        **_STORED_V3, **_STORED_YARN, "rope.scaling.yarn_log_multiplier": 0.1}),
    "deepseek2 v2": Family("deepseek_v2", {
        **_LATENT, "n_routed_experts": 4, "q_lora_rank": None, "n_shared_experts": 2}, {
        **_STORED_LATENT, "expert_count": 4, "expert_shared_count": 2,
        "expert_weights_scale": 1.0}),
    "ernie4_5": Family("ernie4_5", _PADDED, {}),
    "exaone4": Family("exaone4", _WINDOWS, _STORED_WINDOWS),
    "exaone4 small": Family("exaone4", {"sliding_window": None,
                            "layer_types": ["full_attention"] * 2}, {}),
    "falcon": Family("falcon", {"alibi": False, "num_kv_heads": 1, "head_dim": None,
        "num_key_value_heads": None, **_BASE_10000, "intermediate_size": None}, {
        **_LAYER_NORM, **_NO_HEAD_SIZE, **_NO_BASE, "tensor_data_layout": "jploski",
        "attention.head_count_kv": 1, "feed_forward_length": 128}),
    "falcon new": Family("falcon", {"alibi": False, "num_kv_heads": 2, "head_dim": None,
        "new_decoder_architecture": True, "num_key_value_heads": None, **_BASE_10000,
        "intermediate_size": None}, {
        **_LAYER_NORM, **_NO_HEAD_SIZE, **_NO_BASE, "tensor_data_layout": "jploski",
        "feed_forward_length": 128}),
    "gemma": Family("gemma", _BASE_10000, _NO_BASE),
    "gemma4": Family("gemma4_text", {**_GEMMA4, "num_hidden_layers": 6, "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3, "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8, "final_logit_softcapping": 5.0}, {
        **_STORED_GEMMA4, "feed_forward_length": [48, 48, 48, 48, 96, 96],
        "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 8,
        "attention.sliding_window_pattern": [True, False] * 3, "final_logit_softcapping": 5.0}),
    "gemma4 experts": Family("gemma4_text", {**_GEMMA4, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}, {
        **_STORED_GEMMA4, **_STORED_SMALL, "attention.head_count_kv": [2, 2, 1],
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
        "attention.sliding_window_pattern": [True, True, False]}),
    "glm4": Family("glm4", {**_PADDED, **_HALF, "attention_bias": True},
                   {"rope.dimension_count": 4}),
    "glm4moe": Family("glm4_moe", {**_HALF, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "num_hidden_layers": 3, "use_qk_norm": True,
        "attention_bias": True, "routed_scaling_factor": 1.5}, {
        **_STORED_SMALL, "expert_group_count": 1, "expert_group_used_count": 1,
        "rope.dimension_count": 4, "expert_shared_count": 1, "leading_dense_block_count": 1,
        "expert_gating_func": 2, "expert_weights_scale": 1.5, "expert_weights_norm": True}),
    "gpt-oss": Family("gpt_oss", {**_LOCAL, "sliding_window": 8,
        "rope_parameters": {**_YARN, "truncate": False}}, {
        **_STORED_EXPERTS, **_STORED_YARN, "attention.sliding_window": 8,
        "expert_feed_forward_length": 48}),
    "granite": Family("granite", {**_SCALES, "head_dim": None},
                      {**_STORED_SCALES, **_NO_HEAD_SIZE, "rope.dimension_count": 8}),
    "granitemoe": Family("granitemoe", {**_SCALES, **_LOCAL, "head_dim": None},
        {**_STORED_SCALES, **_STORED_EXPERTS, **_NO_HEAD_SIZE, "rope.dimension_count": 8}),
    "granitemoe shared": Family("granitemoeshared", {
        **_SCALES, **_LOCAL, "head_dim": None, "shared_intermediate_size": 24}, {
        **_STORED_SCALES, **_STORED_EXPERTS, **_NO_HEAD_SIZE, "rope.dimension_count": 8,
        **_STORED_SHARED}),
    "granitehybrid": Family("granitemoehybrid", {**_MAMBA, **_LOCAL, "mamba_n_groups": 1},
        {**_STORED_MAMBA, **_STORED_EXPERTS, **_NO_HEAD_SIZE, "ssm.group_count": 1}),
    "granitehybrid dense": Family("granitemoehybrid", {
        **_MAMBA, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_groups": 2}, {
        **_STORED_MAMBA, **_NO_HEAD_SIZE, "ssm.group_count": 2, "expert_count": 0,
        "expert_used_count": 0}),
    "hunyuan-dense": Family("hunyuan_v1_dense", {"rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}}, {
        "rope.freq_base": 10000.0 * 50.0 ** (8 / 6), "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 64}),
    "hunyuan-moe": Family("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": [2, 2],
        "moe_intermediate_size": [48, 48], "num_shared_expert": [1, 1]}, {
        **_STORED_EXPERTS, "expert_feed_forward_length": 48, "expert_shared_count": 1,
        "expert_shared_feed_forward_length": 48}),
    "lfm2": Family("lfm2", {**_SHORT, "block_auto_adjust_ff_dim": False},
                   {**_STORED_SHORT, **_NO_HEAD_SIZE}),
    "lfm2moe": Family("lfm2_moe", {**_SHORT, **_EXPERTS, "num_dense_layers": 1}, {
        **_STORED_SHORT, **_NO_HEAD_SIZE, **_STORED_SMALL, "leading_dense_block_count": 1,
        "expert_gating_func": 2}),
    "llama4": Family("llama4_text", {**_PADDED, "num_local_experts": 4, "intermediate_size": 16,
        "intermediate_size_mlp": 48, "num_hidden_layers": 4, "interleave_moe_layer_step": 2}, {
        "expert_count": 4, "expert_used_count": 1, "rope.dimension_count": 8,
        "interleave_moe_layer_step": 2, "expert_feed_forward_length": 16,
        "feed_forward_length": 48}),
    "minimax-m2": Family("minimax_m2", {**_LOCAL, **_HALF}, {
        **_STORED_EXPERTS, "expert_feed_forward_length": 48, "rope.dimension_count": 4}),
    "mistral3": Family("ministral3", {**_PADDED, "rope_parameters": {
        **_YARN, "llama_4_scaling_beta": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0}}, {
        **_STORED_YARN, "rope.dimension_count": 8, "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.5}),
    "mistral3 mistral": Family("mistral", {"sliding_window": None}, {"rope.dimension_count": 8}),
    "nemotron": Family("nemotron", {**_HALF, "norm_eps": 1e-5}, {
        **_LAYER_NORM, "rope.dimension_count": 4, "rope.scaling.type": "none"}),
    "olmo2": Family("olmo2", {"head_dim": None}, _NO_HEAD_SIZE),
    "olmo2 olmo3": Family("olmo3", {**_WINDOWS, "head_dim": None, "rope_parameters": {
        "full_attention": _YARN, "sliding_attention": _ROPE}}, {
        **_STORED_WINDOWS, **_NO_HEAD_SIZE, **_STORED_YARN, "rope.freq_base_swa": 5000.0}),
    "olmoe": Family("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": None},
                    {**_STORED_EXPERTS, **_NO_HEAD_SIZE}),
    "phi2": Family("phi", {"intermediate_size": 128, "head_dim": None, "num_key_value_heads": 4,
        "rope_parameters": {**_HALF["rope_parameters"], "rope_theta": 10000.0}}, {
        **_LAYER_NORM, **_NO_HEAD_SIZE, **_NO_BASE, "rope.dimension_count": 4,
        "feed_forward_length": 128, "attention.head_count_kv": 4}),
    "phi3 longrope": Family("phi3", {**_PADDED, "original_max_position_embeddings": 16,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 5000.0, "factor": 4.0,
            "original_max_position_embeddings": 16, "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.5, 2.0, 3.0, 4.0]}}, {
        "rope.scaling.attn_factor": 1.224744871, "rope.scaling.original_context_length": 16,
        "rope.dimension_count": 8, "attention.sliding_window": 0}),
    "qwen2moe": Family("qwen2_moe", {**_EXPERTS, **_SHARED}, {**_STORED_SMALL, **_STORED_SHARED}),
    "qwen3next": Family("qwen3_next", {**_DELTA_NET, **_EXPERTS, **_SHARED},
                        {**_STORED_DELTA_NET, **_STORED_SMALL, **_STORED_SHARED}),
    "qwen35": Family("qwen3_5_text", {**_DELTA_NET, **_SECTIONS},
                     {**_STORED_DELTA_NET, **_STORED_SECTIONS}),
    "qwen35moe": Family("qwen3_5_moe_text", {**_DELTA_NET, **_SECTIONS, **_EXPERTS, **_SHARED}, {
        **_STORED_DELTA_NET, **_STORED_SECTIONS, **_STORED_SMALL, **_STORED_SHARED,
        "feed_forward_length": None}),
    "seed_oss": Family("seed_oss", {}, {}),
    "smollm3": Family("smollm3", {**_PADDED, "num_hidden_layers": 4}, {"rope.dimension_count": 8}),
    "starcoder2": Family("starcoder2", {"sliding_window": None, "norm_epsilon": 1e-5},
                         _LAYER_NORM),
}  # fmt: skip
"""By ``general.architecture`` and a note. What a file lacks is None."""


def make_model(family: Family, tied: bool) -> Any:
    """Return a model whose weights and buffers of the checkpoint are all random."""
    torch.manual_seed(7)
    settings = {**SIZES, "tie_word_embeddings": tied, **family.options}
    optional = ("head_dim", "num_key_value_heads", "intermediate_size")
    left_out = {key for key in optional if settings[key] is None}
    config = AutoConfig.for_model(
        family.model_type, **{k: v for k, v in settings.items() if k not in left_out}
    )
    model = AutoModelForCausalLM.from_config(config)
    for values in model.state_dict().values():
        torch.nn.init.normal_(values, std=0.3)
    return model.eval()


def write_family(
    path: Path,
    name: str,
    model: Any,
    metadata: dict[str, Any] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Write ``model`` as the family of this name, with further ``metadata``, and the matrices in
    blocks of ``kind``."""
    architecture, config = name.split()[0], model.config
    writer = GGUFWriter(path, architecture)
    common = {
        "context_length": config.max_position_embeddings, "embedding_length": 32,
        "block_count": config.num_hidden_layers, "feed_forward_length": 48,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
        "attention.value_length": 8, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 5000.0,
    }  # fmt: skip
    for key, value in {**common, **FAMILIES[name].metadata, **(metadata or {})}.items():
        if value is not None:
            _add(writer, f"{architecture}.{key}", value)
    add_tokenizer(writer, "{{ messages }}", ())
    for stored, values in store(name, model).items():
        numbers = values.contiguous().numpy()
        if kind == GGMLQuantizationType.F32 or not _is_in_blocks(stored, values):
            writer.add_tensor(stored, numbers)
        else:
            writer.add_tensor(stored, quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _is_in_blocks(name: str, values: torch.Tensor) -> bool:
    """llama.cpp leaves vectors, norms, routers and convolutions as they are."""
    stays = ("norm.weight", "ffn_gate_inp.weight", "conv1d.weight", "shortconv.conv.weight")
    return name.endswith(".weight") and not name.endswith(stays) and values.dim() > 1


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    adds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
            str: writer.add_string, list: writer.add_array}  # fmt: skip
    adds[type(value)](key, value)
