"""The further fields of configurations of dense decoders."""

from typing import Any

from workers.engine.checkpoints.quantized.gguf.architecture import LONG, Fields, Source
from workers.engine.checkpoints.quantized.gguf.positions import LOG_MULTIPLIER, THETA

_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_GEMMA3_PATTERN = 6
WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
GRANITE = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
BIASES = {"attention_bias": "attn_q.bias", "attention_out_bias": "attn_output.bias"}
"""For classes that have biases by default."""
_FULL_OR_SLIDING = ("full_attention", "sliding_attention")


def read_gemma2(source: Source, fields: Fields) -> Fields:
    is_27b = fields["num_hidden_layers"] == _GEMMA2_27B_LAYERS
    return {
        "query_pre_attn_scalar": _per_head(fields) if is_27b else fields["head_dim"],
    }


def read_gemma3(source: Source, fields: Fields) -> Fields:
    is_27b = fields["num_hidden_layers"] == _GEMMA3_27B_LAYERS
    kinds = ["sliding_attention"] * (_GEMMA3_PATTERN - 1) + ["full_attention"]
    return {
        "query_pre_attn_scalar": _per_head(fields) if is_27b else fields["head_dim"],
        "layer_types": [kinds[i % _GEMMA3_PATTERN] for i in range(fields["num_hidden_layers"])],
        "rope_parameters": {
            "full_attention": fields["rope_parameters"],
            "sliding_attention": _sliding_positions(source),
        },
    }


def read_gemma4(source: Source, fields: Fields) -> Fields:
    metadata, count = source.metadata, source.num_layers
    kinds = source.get_kinds(_PATTERN, _FULL_OR_SLIDING)
    widths = metadata.get_list("feed_forward_length", count)
    key_heads = dict(zip(kinds, metadata.get_list("attention.head_count_kv", count), strict=True))
    sliding = key_heads.get("sliding_attention", key_heads["full_attention"])
    unshared = range(count - int(metadata.get("attention.shared_kv_layers", 0)))
    own = [f"blk.{i}.attn_v.weight" in source.shapes for i in unshared]
    experts: dict[str, Any] = {}
    if source.has("ffn_gate_inp.weight"):
        experts = {
            "enable_moe_block": True,
            "num_experts": metadata["expert_count"],
            "top_k_experts": metadata["expert_used_count"],
            "moe_intermediate_size": metadata["expert_feed_forward_length"],
        }
    per_layer = source.shapes.get("per_layer_token_embd.weight", (1,))
    return {
        "head_dim": metadata.get("attention.key_length_swa", fields["head_dim"]),
        "global_head_dim": fields["head_dim"],
        "num_key_value_heads": sliding,
        "num_global_key_value_heads": key_heads["full_attention"] if not all(own) else None,
        "attention_k_eq_v": not all(own),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "num_kv_shared_layers": count - len(unshared),
        "layer_types": kinds,
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "hidden_size_per_layer_input": metadata.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": per_layer[0],
        "rope_parameters": {
            "full_attention": fields["rope_parameters"],
            "sliding_attention": _sliding_positions(source),
        },
        **experts,
    }


def _sliding_positions(source: Source) -> Fields:
    theta = source.metadata.get("rope.freq_base_swa", THETA)
    return {"rope_type": "default", "rope_theta": theta}


def _per_head(fields: Fields) -> int:
    size: int = fields["hidden_size"] // fields["num_attention_heads"]
    return size


def read_phi3(source: Source, fields: Fields) -> Fields:
    rope = fields["rope_parameters"]
    more = {
        "partial_rotary_factor": rope["partial_rotary_factor"],
        "sliding_window": source.metadata.get(WINDOW) or None,
    }
    trained = rope.get("original_max_position_embeddings")
    return more | {"original_max_position_embeddings": trained} if LONG in source.factors else more


def read_windows(source: Source, fields: Fields) -> Fields:
    """Return the window of the layers that have one."""
    window = source.metadata.get(WINDOW)
    if not window:
        return {"sliding_window": None, "layer_types": ["full_attention"] * source.num_layers}
    return {"sliding_window": window, "layer_types": source.get_kinds(_PATTERN, _FULL_OR_SLIDING)}


def read_olmo3(source: Source, fields: Fields) -> Fields:
    """Return windows, and positions that only layers without them scale."""
    theta = source.metadata.get("rope.freq_base_swa", fields["rope_parameters"]["rope_theta"])
    return {
        **read_windows(source, fields),
        "rope_parameters": {
            "full_attention": fields["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        },
    }


def read_ministral3(source: Source, fields: Fields) -> Fields:
    scale = source.metadata.get(LOG_MULTIPLIER, 0.0)
    beta = {"llama_4_scaling_beta": source.metadata["attention.temperature_scale"]}
    return {"rope_parameters": fields["rope_parameters"] | beta | make_mscales(scale)}


def make_mscales(scale: float) -> Fields:
    """Return what YaRN multiplies scores with, if anything."""
    scale = round(scale, 6)
    return {"mscale": scale, "mscale_all_dim": scale} if scale else {}


def read_falcon(source: Source, fields: Fields) -> Fields:
    key_heads = fields["num_key_value_heads"]
    return {
        "multi_query": key_heads == 1,
        "num_kv_heads": key_heads,
        "ffn_hidden_size": fields["intermediate_size"],
    }


def read_starcoder2(source: Source, fields: Fields) -> Fields:
    return {"sliding_window": source.metadata.get(WINDOW)}
