"""The further fields of configurations of decoders some of whose layers keep a state."""

from workers.engine.checkpoints.quantized.gguf.architecture import KEY_HEADS, Fields, Source

_INTERVAL = 4
DELTA_NET = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
}
MAMBA2 = {
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
}
MAMBA2_BIASES = {"mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"}
SHORT_CONVOLUTIONS = {"conv_L_cache": "shortconv.l_cache"}
SHORT_BIASES = {"conv_bias": "shortconv.conv.bias"}


def read_delta_net(source: Source, fields: Fields) -> Fields:
    heads = source.metadata["ssm.time_step_rank"]
    interval = source.metadata.get("full_attention_interval", _INTERVAL)
    return {
        "linear_num_value_heads": heads,
        "linear_value_head_dim": source.metadata["ssm.inner_size"] // heads,
        "layer_types": [
            "linear_attention" if (i + 1) % interval else "full_attention"
            for i in range(source.num_layers)
        ],
    }


def read_qwen3_next(source: Source, fields: Fields) -> Fields:
    shared = fields["shared_expert_intermediate_size"]
    width = source.metadata.get("feed_forward_length", shared)
    return {**read_delta_net(source, fields), "intermediate_size": width}


def read_qwen35(source: Source, fields: Fields) -> Fields:
    sections = source.metadata.get_list("rope.dimension_sections", 4)
    kinds = {"mrope_section": sections[:3], "mrope_interleaved": True}
    return {**read_delta_net(source, fields), "rope_parameters": fields["rope_parameters"] | kinds}


def read_qwen35_moe(source: Source, fields: Fields) -> Fields:
    return {**read_qwen3_next(source, fields), **read_qwen35(source, fields)}


def read_granite_hybrid(source: Source, fields: Fields) -> Fields:
    metadata = source.metadata
    heads = metadata["ssm.time_step_rank"]
    key_heads = metadata.get_list(KEY_HEADS, source.num_layers)
    has_experts = source.has("ffn_gate_exps.weight")
    dense = metadata.get("expert_shared_feed_forward_length", fields["intermediate_size"])
    return {
        "num_key_value_heads": max(key_heads),
        "layer_types": ["full_attention" if count else "mamba" for count in key_heads],
        "num_local_experts": metadata["expert_count"] if has_experts else 0,
        "num_experts_per_tok": metadata["expert_used_count"] if has_experts else 0,
        "shared_intermediate_size": dense,
        "position_embedding_type": "rope" if metadata.get("rope.scaling.finetuned") else "nope",
        "mamba_n_heads": heads,
        "mamba_d_head": metadata["ssm.inner_size"] // heads,
        "mamba_expand": metadata["ssm.inner_size"] // fields["hidden_size"],
    }


def read_lfm2(source: Source, fields: Fields) -> Fields:
    key_heads = source.metadata.get_list(KEY_HEADS, source.num_layers)
    return {
        "num_key_value_heads": max(key_heads),
        "layer_types": ["full_attention" if count else "conv" for count in key_heads],
    }
