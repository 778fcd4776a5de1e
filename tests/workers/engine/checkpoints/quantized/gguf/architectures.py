"""Architectures: the model type of each, the options of a tiny model, and metadata of its file."""

from pathlib import Path
from typing import Any

from workers.preparation import gguf_checkpoint

ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama yarn": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0,
                             "original_max_position_embeddings": 16}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
         "rope.scaling.original_context_length": 16},
    ),
    "llama yarn, every setting": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0,
                             "original_max_position_embeddings": 16, "attention_factor": 1.5,
                             "beta_fast": 16.0, "beta_slow": 2.0}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
         "rope.scaling.original_context_length": 16, "rope.scaling.yarn_attn_factor": 1.5,
         "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0,
         "rope.scaling.yarn_ext_factor": 1.0},
    ),
    "llama yarn, by default": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0,
                             "original_max_position_embeddings": 64}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    ),
    "llama linear, by default": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        {"rope.scaling.factor": 4.0},
    ),
    "llama linear, by the old name": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        {"rope.scale_linear": 4.0},
    ),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "qwen3moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16},
    ),
    "llama mixtral": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"expert_count": 4, "expert_used_count": 2},
    ),
    "gemma2": (
        "gemma2",
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0,
         "final_logit_softcapping": 3.0},
        {"attention.sliding_window": 8, "attn_logit_softcapping": 5.0,
         "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "num_hidden_layers": 7,
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
        {"attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "phi3": (
        "phi3",
        {"partial_rotary_factor": 0.5, "pad_token_id": 0},
        {"rope.dimension_count": 4},
    ),
}  # fmt: skip


def describe(source: Path, target: Path) -> Path:
    gguf_checkpoint.describe(source, target, "float32", str(source))
    return target
