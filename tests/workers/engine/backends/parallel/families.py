"""Tiny models whose heads several ranks can share."""

from typing import Any

from tests.workers.engine.tiny_models import LLAMA

_WIDE: dict[str, Any] = {
    **LLAMA, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip
_GEMMA = {**_WIDE, "sliding_window": 24, "query_pre_attn_scalar": 16}
_LATENT: dict[str, Any] = {
    **LLAMA, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _WIDE,
    "tied": {**_WIDE, "tie_word_embeddings": True, "vocab_size": 401},
    "uneven": {
        **_WIDE, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3,
        "attention_bias": True,
    },
    "one_kv_head": {**_WIDE, "num_key_value_heads": 1},
    "qwen3": {**_WIDE, "model_type": "qwen3"},
    "gemma2": {**_GEMMA, "model_type": "gemma2"},
    "gemma3": {**_GEMMA, "model_type": "gemma3_text"},
    "deepseek_v2": {
        **_LATENT, "model_type": "deepseek_v2", "q_lora_rank": None, "n_group": 1, "topk_group": 1,
    },
    "glm4_moe_lite": {**_LATENT, "model_type": "glm4_moe_lite"},
    "glm_moe_dsa": {
        **_LATENT, "model_type": "glm_moe_dsa", "index_topk": 16, "index_n_heads": 16,
        "index_head_dim": 16, "indexer_types": ["full", "shared"],
    },
    "minimax_m3": {
        **_WIDE, "model_type": "minimax_m3_vl_text", "num_local_experts": 8,
        "num_experts_per_tok": 2, "shared_intermediate_size": 32, "index_n_heads": 4,
        "index_head_dim": 16, "index_block_size": 4, "index_topk_blocks": 3,
        "layer_types": ["full_attention", "minimax_m3_sparse"],
    },
    "qwen3_moe": {
        **_WIDE, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}  # fmt: skip
"""By name; of a vocabulary and of heads that divide unevenly, one has each."""
