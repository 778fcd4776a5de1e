"""The architectures of GGUF files that are read, one record each.

Names follow llama.cpp, https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf.
"""

from workers.engine.checkpoints.quantized.gguf import dense, edits, hybrids, mixtures, names
from workers.engine.checkpoints.quantized.gguf.architecture import KEY_HEADS, Architecture

_LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
_NORM_EPS = {"attention.layer_norm_rms_epsilon": "norm_eps"}
_EMBEDDING_NORM = {"token_embd_norm": "model.embedding_norm", "output_norm": "model.embedding_norm"}


def make_falcon(norms: dict[str, str]) -> Architecture:
    """Make the record of one of Falcon's sizes, which name the norms before a layer differently."""
    return Architecture(
        "falcon",
        epsilons={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        tensors={"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f"},
        layers="transformer.h",
        layer_tensors={
            **norms,
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        edits={"query_key_value.weight": edits.group_falcon},
        shown={"bias": "attn_qkv.bias", "new_decoder_architecture": "attn_norm_2.weight"},
        constants={"alibi": False, "parallel_attn": True},
        more=dense.read_falcon,
        without=frozenset({"head_dim", "num_key_value_heads", "intermediate_size"}),
    )


def make_deepseek(model_type: str) -> Architecture:
    """Make the record of one of DeepSeek's versions, which have attention over latent vectors."""
    return Architecture(
        model_type,
        rotates_in_part=True,
        layer_tensors=names.LATENT,
        edits={"kv_b_proj.weight": edits.compose_latent},
        more=mixtures.read_deepseek,
        without=frozenset({"head_dim"}),
    )


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", edits=edits.INTERLEAVED),
    "arcee": Architecture("arcee", edits=edits.INTERLEAVED),
    "command-r": Architecture(
        "cohere",
        epsilons=_LAYER_NORM,
        fields={"logit_scale": "logit_scale"},
        shown={"use_qk_norm": "attn_q_norm.weight"},
    ),
    "deepseek2": make_deepseek("deepseek_v3"),
    "ernie4_5": Architecture("ernie4_5"),
    "exaone4": Architecture("exaone4", layer_tensors=names.NORMS_AFTER, more=dense.read_windows),
    "falcon": make_falcon({"attn_norm": "input_layernorm"}),
    "gemma": Architecture("gemma", edits=edits.NORMS_PLUS_ONE),
    "gemma2": Architecture(
        "gemma2",
        layer_tensors=names.FOUR_NORMS,
        edits=edits.NORMS_PLUS_ONE,
        fields={
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
            "sliding_window": dense.WINDOW,
        },
        constants={"hidden_activation": "gelu_pytorch_tanh"},
        more=dense.read_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        layer_tensors=names.FOUR_NORMS,
        edits=edits.NORMS_PLUS_ONE,
        fields={"sliding_window": dense.WINDOW},
        more=dense.read_gemma3,
    ),
    "gemma4": Architecture(
        "gemma4_text",
        tensors={
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        layer_tensors={
            **names.FOUR_NORMS,
            "layer_output_scale.weight": "layer_scalar",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "ffn_gate_inp": "router.proj",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_down_exps.scale": "router.per_expert_scale",
            "ffn_gate_up_exps": "experts.gate_up_proj/0",
            "ffn_down_exps": "experts.down_proj/0",
        },
        fields={"sliding_window": dense.WINDOW},
        more=dense.read_gemma4,
        varying=frozenset({"feed_forward_length", KEY_HEADS}),
    ),
    "glm4": Architecture(
        "glm4",
        rotates_in_part=True,
        layer_tensors={
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        shown=dense.BIASES,
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        rotates_in_part=True,
        layer_tensors={
            **names.SECOND_NORM,
            **names.EXPERTS,
            **names.CORRECTION,
            **names.name_shared_experts("mlp.shared_experts"),
        },
        shown={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
        more=mixtures.read_routed,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        layer_tensors={
            **names.SECOND_NORM,
            **names.name_experts("mlp", "router"),
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias/0",
            "ffn_up_exps.bias": "mlp.experts.gate_up_proj_bias/1",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        edits={
            "experts.gate_up_proj": edits.alternate_and_transpose,
            "experts.gate_up_proj_bias": edits.alternate,
            "experts.down_proj": edits.transpose,
        },
        fields={**mixtures.NARROW_EXPERTS, "sliding_window": dense.WINDOW},
        shown={"attention_bias": "attn_q.bias"},
        more=mixtures.read_gpt_oss,
    ),
    "granite": Architecture("granite", edits=edits.INTERLEAVED, fields=dense.GRANITE),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        layer_tensors={
            **names.name_experts("block_sparse_moe", "router"),
            **names.GRANITE_SHARED,
            **names.GRANITE_DENSE,
            **names.MAMBA2,
        },
        edits={**edits.INTERLEAVED, **edits.MAMBA2},
        fields={**dense.GRANITE, **hybrids.MAMBA2},
        shown=hybrids.MAMBA2_BIASES,
        more=hybrids.read_granite_hybrid,
        varying=frozenset({KEY_HEADS}),
        without=frozenset({"head_dim"}),
    ),
    "granitemoe": Architecture(
        "granitemoe",
        layer_tensors=names.name_experts("block_sparse_moe", "router"),
        edits=edits.INTERLEAVED,
        fields={**dense.GRANITE, **mixtures.LOCAL_EXPERTS},
        more=mixtures.read_shared_granite,
    ),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", layer_tensors=names.HUNYUAN_NORMS),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        layer_tensors={
            **names.HUNYUAN_NORMS,
            **names.name_experts("mlp", "gate.wg"),
            **names.name_shared_experts("mlp.shared_mlp"),
        },
        more=mixtures.read_hunyuan_experts,
    ),
    "lfm2": Architecture(
        "lfm2",
        epsilons=_NORM_EPS,
        tensors=_EMBEDDING_NORM,
        layer_tensors=names.SHORT_CONVOLUTIONS,
        edits={"conv.conv.weight": edits.widen_convolution},
        fields=hybrids.SHORT_CONVOLUTIONS,
        shown=hybrids.SHORT_BIASES,
        constants={"block_auto_adjust_ff_dim": False},
        more=hybrids.read_lfm2,
        varying=frozenset({KEY_HEADS}),
        without=frozenset({"head_dim"}),
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        epsilons=_NORM_EPS,
        tensors=_EMBEDDING_NORM,
        layer_tensors={
            **names.SHORT_CONVOLUTIONS,
            **names.name_experts("feed_forward", "gate"),
            "exp_probs_b.bias": "feed_forward.expert_bias",
        },
        edits={"conv.conv.weight": edits.widen_convolution},
        fields={
            **hybrids.SHORT_CONVOLUTIONS,
            **mixtures.EXPERTS,
            "num_dense_layers": "leading_dense_block_count",
        },
        shown={**hybrids.SHORT_BIASES, "use_expert_bias": "exp_probs_b.bias"},
        constants={"block_auto_adjust_ff_dim": False, "norm_topk_prob": True},
        more=hybrids.read_lfm2,
        varying=frozenset({KEY_HEADS}),
        without=frozenset({"head_dim"}),
    ),
    "llama4": Architecture(
        "llama4_text",
        layer_tensors={
            **names.name_experts("feed_forward", "router"),
            **names.name_shared_experts("feed_forward.shared_expert"),
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        },
        edits={"experts.gate_up_proj": edits.transpose, "experts.down_proj": edits.transpose},
        fields={
            **mixtures.NARROW_EXPERTS,
            "intermediate_size_mlp": "feed_forward_length",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        more=mixtures.read_llama4,
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        rotates_in_part=True,
        layer_tensors={**names.EXPERTS, "exp_probs_b.bias": "mlp.e_score_correction_bias"},
        fields=mixtures.NARROW_EXPERTS,
    ),
    "mistral3": Architecture("ministral3", edits=edits.INTERLEAVED, more=dense.read_ministral3),
    "nemotron": Architecture(
        "nemotron",
        rotates_in_part=True,
        epsilons={"attention.layer_norm_epsilon": "norm_eps"},
        edits=edits.NORMS_PLUS_ONE,
    ),
    "olmo2": Architecture("olmo2", layer_tensors=names.NORMS_AFTER),
    "olmoe": Architecture(
        "olmoe",
        layer_tensors=names.EXPERTS,
        fields={"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
        constants={"norm_topk_prob": False},
    ),
    "phi2": Architecture(
        "phi",
        rotates_in_part=True,
        epsilons=_LAYER_NORM,
        tensors={"output_norm": "model.final_layernorm"},
        layer_tensors={
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
    ),
    "phi3": Architecture(
        "phi3",
        rotates_in_part=True,
        layer_tensors={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        more=dense.read_phi3,
    ),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture(
        "qwen2_moe",
        layer_tensors={**names.EXPERTS, **names.QWEN_SHARED},
        edits={"shared_expert_gate.weight": edits.join_shared},
        fields=mixtures.QWEN_SHARED,
        constants={"norm_topk_prob": False},
    ),
    "qwen3": Architecture("qwen3"),
    "qwen35": Architecture(
        "qwen3_5_text",
        rotates_in_part=True,
        layer_tensors=names.QWEN35,
        edits=edits.GROUPED_DELTA_NET,
        fields=hybrids.DELTA_NET,
        more=hybrids.read_qwen35,
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        rotates_in_part=True,
        layer_tensors={**names.QWEN35, **names.EXPERTS, **names.QWEN_SHARED},
        edits=edits.GROUPED_DELTA_NET,
        fields={**hybrids.DELTA_NET, **mixtures.QWEN_SHARED},
        constants={"norm_topk_prob": True},
        more=hybrids.read_qwen35_moe,
        varying=frozenset({"feed_forward_length"}),
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        layer_tensors=names.EXPERTS,
        fields=mixtures.EXPERTS,
        constants={"norm_topk_prob": True},
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        rotates_in_part=True,
        layer_tensors={
            **names.DELTA_NET,
            **names.EXPERTS,
            **names.QWEN_SHARED,
            "ssm_ba": "linear_attn.in_proj_ba",
            "ssm_in.weight": "linear_attn.in_proj_qkvz.weight/0",
            "attn_qkv.weight": "linear_attn.in_proj_qkvz.weight/0",
            "attn_gate.weight": "linear_attn.in_proj_qkvz.weight/1",
        },
        edits=edits.DELTA_NET,
        fields={**hybrids.DELTA_NET, **mixtures.QWEN_SHARED},
        constants={"norm_topk_prob": True},
        more=hybrids.read_qwen3_next,
        varying=frozenset({"feed_forward_length"}),
    ),
    "seed_oss": Architecture("seed_oss", layer_tensors=names.SECOND_NORM, shown=dense.BIASES),
    "smollm3": Architecture("smollm3", edits=edits.INTERLEAVED),
    "starcoder2": Architecture(
        "starcoder2",
        epsilons={"attention.layer_norm_epsilon": "norm_epsilon"},
        layer_tensors={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        shown={"use_bias": "attn_q.bias"},
        more=dense.read_starcoder2,
    ),
}
"""By ``general.architecture``. A name of a tensor is whole, or stands for its weight and its bias;
``/n`` in the name of a weight is the place among its parts."""
