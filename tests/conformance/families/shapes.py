"""Tiny configurations of any causal language model that transformers knows.

A configuration class names its sizes as it likes. Those of ``SIZES`` that it has are set; what a
family needs beside them stands in the table.
"""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB_SIZE = 400
CONTEXT = 512

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 32,
    "sliding_window": 16,
    "attention_chunk_size": 32,
    "local_attention": 16,
    "initializer_range": 0.3,
    "init_std": 0.3,
    "use_mamba_kernels": False,
}

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def tiny(model_type: str, options: Mapping[str, Any]) -> Any:
    """A tiny configuration. ``options`` override the sizes; None leaves the class's default."""
    defaults = CONFIG_MAPPING[model_type]()
    known = {*defaults.to_dict(), *(getattr(type(defaults), "attribute_map", None) or {})}
    sizes = {name: size for name, size in SIZES.items() if name in known}
    given = {**sizes, **TOKENS, **options}
    return AutoConfig.for_model(model_type, **{k: v for k, v in given.items() if v is not None})
