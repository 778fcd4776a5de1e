"""What llama.cpp's names of tensors are called in transformers.

A name is whole, or stands for its weight and its bias; ``/n`` in the name of a weight is the place
among its parts. The names follow
https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py.
"""

TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
SECOND_NORM = {"post_attention_norm": "post_attention_layernorm"}
"""Of files that call the norm before the MLP the norm after attention."""


def name_experts(mlp: str, router: str) -> dict[str, str]:
    return {
        "ffn_gate_inp": f"{mlp}.{router}",
        "ffn_gate_exps": f"{mlp}.experts.gate_up_proj/0",
        "ffn_up_exps": f"{mlp}.experts.gate_up_proj/1",
        "ffn_down_exps": f"{mlp}.experts.down_proj/0",
    }


def name_shared_experts(module: str) -> dict[str, str]:
    return {
        "ffn_gate_shexp": f"{module}.gate_proj",
        "ffn_up_shexp": f"{module}.up_proj",
        "ffn_down_shexp": f"{module}.down_proj",
    }


EXPERTS = name_experts("mlp", "gate")
QWEN_SHARED = {
    **name_shared_experts("mlp.shared_expert"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
DELTA_NET = {
    **SECOND_NORM,
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
QWEN35 = {
    **DELTA_NET,
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
}
LATENT = {
    **EXPERTS,
    **CORRECTION,
    **name_shared_experts("mlp.shared_experts"),
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b.weight": "self_attn.kv_b_proj.weight/0",
    "attn_k_b.weight": "self_attn.kv_b_proj.weight/0",
    "attn_v_b.weight": "self_attn.kv_b_proj.weight/1",
}
MAMBA2 = {
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_dt.bias": "mamba.dt_bias",
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
GRANITE_SHARED = {
    "ffn_gate_shexp.weight": "shared_mlp.input_linear.weight/0",
    "ffn_up_shexp.weight": "shared_mlp.input_linear.weight/1",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
GRANITE_DENSE = {
    "ffn_gate.weight": "shared_mlp.input_linear.weight/0",
    "ffn_up.weight": "shared_mlp.input_linear.weight/1",
    "ffn_down": "shared_mlp.output_linear",
}
SHORT_CONVOLUTIONS = {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
HUNYUAN_NORMS = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
