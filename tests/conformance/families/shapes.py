"""Tiny configurations of any causal language model that transformers knows.

A configuration class names its sizes as it likes. Those of ``SIZES`` that it has are set; what a
family needs beside them stands in the table.
"""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
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
    # With few heads, many tokens have a score of 0, and transformers breaks such ties by chance.
    "index_n_heads": 16,
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


VISION: dict[str, Any] = {
    "hidden_size": 64,
    "embed_dim": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 4,
    "num_heads": 4,
    "head_dim": 16,
    "image_size": 56,
}
"""Of the part of a model that reads images, which no test uses."""


def tiny(model_type: str, options: Mapping[str, Any]) -> Any:
    """A tiny configuration. ``options`` override the sizes; None leaves the class's default. If the
    language model is one of several parts, they are its options."""
    defaults = CONFIG_MAPPING[model_type]()
    text = defaults.get_text_config()
    given = {**_known(text, SIZES), **TOKENS, **options}
    given = {name: value for name, value in given.items() if value is not None}
    if text is defaults:
        return AutoConfig.for_model(model_type, **given)
    text_type = given.pop("model_type", text.model_type)
    width = given.get("hidden_size")
    parts = {
        name: {**_known(part, {**VISION, "out_hidden_size": width}), "model_type": part.model_type}
        for name, part in vars(defaults).items()
        if isinstance(part, PreTrainedConfig) and part is not text
    }
    return AutoConfig.for_model(
        model_type, text_config={**given, "model_type": text_type}, **parts, **TOKENS
    )


def _known(defaults: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the sizes that a configuration has."""
    known = {*defaults.to_dict(), *(getattr(type(defaults), "attribute_map", None) or {})}
    return {name: size for name, size in sizes.items() if name in known}
