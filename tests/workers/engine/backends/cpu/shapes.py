"""Options of models small enough for a test and large enough in every dimension for the kernels."""

from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 416,
    "hidden_size": 192,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
WIDE = {"num_attention_heads": 6, "head_dim": 128}
RECOGNISED: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama of wide heads": WIDE,
    "llama scaled": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
        }
    },
    "mistral": {"sliding_window": 37},
    "qwen3": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
}  # fmt: skip
LATENT: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": None, "q_lora_rank": 96,
    "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 48, "v_head_dim": 40,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention"] * 2 + ["full_attention"],
    "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 48,
}  # fmt: skip
SHORT: dict[str, Any] = {
    "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"],
}  # fmt: skip
SPACE: dict[str, Any] = {
    "mamba_n_heads": 6, "mamba_d_head": 32, "mamba_d_state": 48, "mamba_expand": 1,
}  # fmt: skip
PER_LAYER: dict[str, Any] = {
    "num_hidden_layers": 5, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"]
    + ["full_attention"], "sliding_window": 20, "head_dim": 64, "global_head_dim": 128,
    "vocab_size_per_layer_input": 416, "hidden_size_per_layer_input": 32,
    "final_logit_softcapping": 30.0,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 3, "topk_group": 2,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 64, "sliding_window": 20, "head_dim": 96},
    "gemma3_text": {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    "glm4": {},
    "phi3": {},
    "phi": {"num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 192},
    "gpt_neox": {"num_attention_heads": 2},
    "cohere": {},
    "granite": {"residual_multiplier": 0.3, "logits_scaling": 4.0, "embedding_multiplier": 2.0},
    "olmo2": {},
    "phi with heads of 80": {
        "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 320,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        },
    },
    "llama with heads of 72": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 72},
    "qwen3 with heads of 112": {
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 112,
    },
    "mistral with heads of 120": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 120, "sliding_window": 37,
    },
    "falcon": {
        "num_attention_heads": 20, "hidden_size": 640, "head_dim": None, "ffn_hidden_size": 96,
        "initializer_range": 0.08,
    },
    "falcon with groups": {
        "num_attention_heads": 4, "num_kv_heads": 2, "hidden_size": 256, "head_dim": None,
        "ffn_hidden_size": 96,
        "new_decoder_architecture": True,
    },
    "gpt2": {"n_inner": 96, "vocab_size": 421},
    "gpt_bigcode": {
        "num_attention_heads": 20, "hidden_size": 640, "n_inner": 96, "initializer_range": 0.08,
    },
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 192, "vocab_size": 417},
    "cohere with 419 tokens": {"vocab_size": 419, "logit_scale": 0.5},
    "stablelm": {
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 96, "qk_layernorm": True,
        "use_parallel_residual": True,
    },
    "qwen2_moe": {
        "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96, "mlp_only_layers": [0], "decoder_sparse_step": 1,
    },
    "gpt_oss": {
        "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "glm4_moe": {
        "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "n_shared_experts": 1, "first_k_dense_replace": 1,
    },
    "ernie4_5_moe": {
        "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 64, "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    },
    "deepseek_v2": {
        **LATENT, **MIXTURE, "q_lora_rank": None, "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": 2.0,
    },
    "deepseek_v2 with groups": {**LATENT, **MIXTURE, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {
        **LATENT, **MIXTURE, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 128,
        },
    },
    "deepseek_v3 with halves": {**LATENT, **MIXTURE, "rope_interleave": False},
    "glm4_moe_lite": {**LATENT, **MIXTURE, "qk_nope_head_dim": 96, "v_head_dim": 128},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {
        **DELTA, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
    },
    "qwen3_next": {
        **DELTA, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96, "linear_conv_kernel_dim": 3,
    },
    "lfm2": {
        **SHORT, "block_auto_adjust_ff_dim": False, "conv_L_cache": 4, "conv_bias": True,
    },
    "lfm2_moe": {
        **SHORT, "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
    },
    "gemma4_text": PER_LAYER,
    "gemma4_text with experts": {
        **PER_LAYER, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
        "enable_moe_block": True, "num_experts": 6, "top_k_experts": 3,
        "moe_intermediate_size": 64, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4,
    },
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {"num_experts": 6, "moe_topk": 3},
    "minimax_m2": {"num_local_experts": 6, "num_experts_per_tok": 3},
    "apertus": {},
    "olmo with clips": {"clip_qkv": 0.5},
    "hyperclovax": {"use_post_norm": True},
    "llama4_text": {
        "num_hidden_layers": 4, "interleave_moe_layer_step": 2, "head_dim": 32,
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size_mlp": 160,
        "attention_chunk_size": 40, "floor_scale": 16, "attn_scale": 0.5,
    },
    "ministral3": {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
        "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5,
    }},
    "granitemoehybrid": {
        "layer_types": ["full_attention"] * 2, "num_local_experts": 0, "head_dim": None,
        "num_attention_heads": 3, "num_key_value_heads": 1, "shared_intermediate_size": 96,
        "position_embedding_type": "rope", "residual_multiplier": 0.3, "logits_scaling": 4.0,
    },
    "granitemoehybrid with experts": {
        "layer_types": ["full_attention"] * 2, "num_local_experts": 6, "head_dim": None,
        "num_attention_heads": 3, "num_key_value_heads": 1, "shared_intermediate_size": 96,
        "num_experts_per_tok": 3, "residual_multiplier": 0.3, "logits_scaling": 4.0,
    },
    "granitemoehybrid with states": {
        **SPACE, "num_hidden_layers": 4, "head_dim": None, "num_local_experts": 0,
        "layer_types": ["mamba", "mamba", "full_attention", "mamba"], "mamba_n_groups": 1,
        "shared_intermediate_size": 96, "residual_multiplier": 0.3, "logits_scaling": 4.0,
        "embedding_multiplier": 2.0, "attention_multiplier": 0.1, "vocab_size": 421,
    },
    "granitemoehybrid with states and experts": {
        **SPACE, "num_hidden_layers": 3, "head_dim": None, "num_local_experts": 6,
        "layer_types": ["mamba", "full_attention", "mamba"], "mamba_n_groups": 2,
        "num_experts_per_tok": 3, "shared_intermediate_size": 96, "mamba_proj_bias": True,
        "residual_multiplier": 0.3, "logits_scaling": 4.0,
    },
    "bamba": {
        **SPACE, "attn_layer_indices": [1], "num_hidden_layers": 3, "mamba_n_groups": 1,
        "head_dim": None,
    },
    "nemotron_h": {
        "num_hidden_layers": None, "hybrid_override_pattern": "M-M*-M", "mamba_num_heads": 6,
        "mamba_head_dim": 32, "ssm_state_size": 80, "n_groups": 2, "vocab_size": 419,
    },
    "nemotron_h with experts": {
        "num_hidden_layers": None, "hybrid_override_pattern": "ME*EM", "mamba_num_heads": 6,
        "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 1, "n_routed_experts": 6,
        "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 96, "routed_scaling_factor": 1.5,
    },
    "falcon_h1": {
        **SPACE, "mamba_d_ssm": 192, "mamba_n_groups": 2, "num_hidden_layers": 3,
        "ssm_multipliers": [0.7, 0.8, 0.9, 1.1, 1.2], "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.6, "attention_in_multiplier": 0.9, "attention_out_multiplier": 0.8,
        "key_multiplier": 0.7, "mlp_multipliers": [0.9, 0.6], "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.5, "vocab_size": 423,
    },
    "falcon_h1 with norms": {
        **SPACE, "mamba_d_ssm": 192, "mamba_n_groups": 1, "mamba_rms_norm": True,
    },
    "mellum": {
        "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
        },
    },
    "hy_v3": {
        "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 64, "num_shared_experts": 2, "router_scaling_factor": 1.5,
        "mlp_layer_types": ["dense", "sparse"],
    },
    "minicpm3": {**LATENT, "dim_model_base": 64, "scale_depth": 0.7, "scale_emb": 2},
    "cohere2": {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20,
        "logit_scale": 0.5,
    },
    "exaone4": {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20,
    },
    "exaone_moe": {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20,
        "mlp_layer_types": ["dense", "sparse"], "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
    },
    "youtu": {**LATENT, "v_head_dim": 96, "attention_bias": True},
}  # fmt: skip
"""One for each feature of a layer beside those of Llama: norms around, over whole rows and of each
head, centered ones; biases; softcaps; partial, interleaved and several kinds of rotary positions;
fused and mixed up projections; MLPs without a gate; blocks side by side; scales; sinks; experts by
softmax and by themselves, clamped, corrected, and with shared ones; heads that end within a
register; learned positions; more heads of one key than a tile holds; vocabularies of any size;
heads from latents, whose values have another size, with groups of experts; gated delta networks and
gated attention; short convolutions; state spaces in place of attention or beside it, with biases
and factors, layers of one part, and experts without a gate; layers whose heads differ, with inputs
of their own, keys and values of earlier layers, and experts beside an MLP; norms of rotated heads;
corrections that routers are given; xIELU; clipped heads; chunks, temperatures by position, of heads
that are rotated too, and experts whose inputs are weighed; MLPs of two layers, no positions at all,
and kinds of
layers that the configuration lists."""
OTHERS: dict[str, dict[str, Any]] = {
    "olmoe": {"clip_qkv": 0.5, "num_experts": 4, "num_experts_per_tok": 2},
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
