"""The further fields of configurations of mixtures of experts."""

from workers.engine.checkpoints.quantized.gguf.architecture import Fields, Source
from workers.engine.checkpoints.quantized.gguf.dense import make_mscales
from workers.engine.checkpoints.quantized.gguf.positions import LOG_MULTIPLIER

_NO_NORMS_128 = 128
"""How many experts the Llama 4 has whose queries and keys are not normalized."""
LOCAL_EXPERTS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
NARROW_EXPERTS = {**LOCAL_EXPERTS, "intermediate_size": "expert_feed_forward_length"}
"""Of models that have no other MLPs."""
EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
QWEN_SHARED = {**EXPERTS, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"}


def read_gpt_oss(source: Source, fields: Fields) -> Fields:
    rope = fields["rope_parameters"]
    return {"rope_parameters": rope | {"truncate": False} if rope["rope_type"] == "yarn" else rope}


def read_llama4(source: Source, fields: Fields) -> Fields:
    metadata = source.metadata
    is_chunked = metadata.get("attention.sliding_window", 1) != 0
    layers = {} if is_chunked else {"layer_types": ["full_attention"] * source.num_layers}
    return {**layers, "use_qk_norm": metadata["expert_count"] != _NO_NORMS_128}


def read_routed(source: Source, fields: Fields) -> Fields:
    metadata = source.metadata
    return {
        "n_routed_experts": metadata["expert_count"],
        "num_experts_per_tok": metadata["expert_used_count"],
        "moe_intermediate_size": metadata["expert_feed_forward_length"],
        "n_shared_experts": metadata["expert_shared_count"],
        "first_k_dense_replace": _count_dense(source),
        "routed_scaling_factor": metadata.get("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(metadata.get("expert_weights_norm", False)),
        "n_group": metadata.get("expert_group_count", 1),
        "topk_group": metadata.get("expert_group_used_count", 1),
        "num_mtp_layers": 0,
    }


def _count_dense(source: Source) -> int:
    """Return how many layers have no experts: some files state none."""
    routers = (f"blk.{i}.ffn_gate_inp.weight" for i in range(source.num_layers))
    return sum(router not in source.shapes for router in routers)


def read_deepseek(source: Source, fields: Fields) -> Fields:
    """Return sizes of latent attention and of experts. Newer files state the sizes of heads as
    those of the latents, and the true ones beside them."""
    metadata = source.metadata
    turned = metadata["rope.dimension_count"]
    key = metadata.get("attention.key_length_mla", metadata["attention.key_length"])
    value = metadata.get("attention.value_length_mla", metadata["attention.value_length"])
    is_grouped = metadata.get("expert_group_count", 1) > 1
    scale = metadata.get(LOG_MULTIPLIER, 0.0) * 10
    rope = {
        name: value
        for name, value in fields["rope_parameters"].items()
        if name != "partial_rotary_factor"
    }
    return {
        **read_routed(source, fields),
        "num_key_value_heads": fields["num_attention_heads"],
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
        "kv_lora_rank": metadata["attention.kv_lora_rank"],
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "v_head_dim": value,
        "topk_method": "group_limited_greedy" if is_grouped else "greedy",
        "rope_parameters": rope | make_mscales(scale),
    }


def read_shared_granite(source: Source, fields: Fields) -> Fields:
    shared = source.metadata.get("expert_shared_feed_forward_length")
    return {} if shared is None else {"shared_intermediate_size": shared}


def read_hunyuan_experts(source: Source, fields: Fields) -> Fields:
    metadata = source.metadata
    count = source.num_layers
    return {
        "num_experts": metadata["expert_count"],
        "moe_topk": [metadata["expert_used_count"]] * count,
        "intermediate_size": metadata["expert_feed_forward_length"],
        "moe_intermediate_size": [metadata["expert_feed_forward_length"]] * count,
        "num_shared_expert": [metadata.get("expert_shared_count", 1)] * count,
    }
