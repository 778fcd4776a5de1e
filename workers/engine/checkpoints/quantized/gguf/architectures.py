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
        "FalconForCausalLM",
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
        more=dense.read_falcon,
        without=frozenset({"head_dim", "num_key_value_heads", "intermediate_size"}),
    )


def make_deepseek(model_type: str, model_class: str) -> Architecture:
    """Make the record of one of DeepSeek's versions, which have attention over latent vectors."""
    return Architecture(
        model_type,
        model_class,
        rotates_in_part=True,
        layer_tensors=names.LATENT,
        edits={"kv_b_proj.weight": edits.compose_latent},
        more=mixtures.read_deepseek,
        without=frozenset({"head_dim"}),
    )


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", "LlamaForCausalLM", edits=edits.INTERLEAVED),
    "arcee": Architecture("arcee", "ArceeForCausalLM", edits=edits.INTERLEAVED),
    "command-r": Architecture(
        "cohere",
        "CohereForCausalLM",
        epsilons=_LAYER_NORM,
        more=dense.read_command_r,
    ),
    "deepseek2": make_deepseek("deepseek_v3", "DeepseekV3ForCausalLM"),
    "ernie4_5": Architecture("ernie4_5", "Ernie4_5ForCausalLM"),
    "exaone4": Architecture(
        "exaone4",
        "Exaone4ForCausalLM",
        layer_tensors=names.NORMS_AFTER,
        more=dense.read_windows,
    ),
    "falcon": make_falcon({"attn_norm": "input_layernorm"}),
    "gemma": Architecture("gemma", "GemmaForCausalLM", edits=edits.NORMS_PLUS_ONE),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        layer_tensors=names.FOUR_NORMS,
        edits=edits.NORMS_PLUS_ONE,
        more=dense.read_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        layer_tensors=names.FOUR_NORMS,
        edits=edits.NORMS_PLUS_ONE,
        more=dense.read_gemma3,
    ),
    "gemma4": Architecture(
        "gemma4_text",
        "Gemma4ForCausalLM",
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
        more=dense.read_gemma4,
        varying=frozenset({"feed_forward_length", KEY_HEADS}),
    ),
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        rotates_in_part=True,
        layer_tensors={
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        more=dense.read_biases,
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        rotates_in_part=True,
        layer_tensors={
            **names.SECOND_NORM,
            **names.EXPERTS,
            **names.CORRECTION,
            **names.name_shared_experts("mlp.shared_experts"),
        },
        more=mixtures.read_glm4_moe,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
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
        more=mixtures.read_gpt_oss,
    ),
    "granite": Architecture(
        "granite", "GraniteForCausalLM", edits=edits.INTERLEAVED, more=dense.read_granite
    ),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        layer_tensors={
            **names.name_experts("block_sparse_moe", "router"),
            **names.GRANITE_SHARED,
            **names.GRANITE_DENSE,
            **names.MAMBA2,
        },
        edits={**edits.INTERLEAVED, **edits.MAMBA2},
        more=hybrids.read_granite_hybrid,
        varying=frozenset({KEY_HEADS}),
        without=frozenset({"head_dim"}),
    ),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        layer_tensors=names.name_experts("block_sparse_moe", "router"),
        edits=edits.INTERLEAVED,
        more=mixtures.read_granite_experts,
    ),
    "hunyuan-dense": Architecture(
        "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", layer_tensors=names.HUNYUAN_NORMS
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        "HunYuanMoEV1ForCausalLM",
        layer_tensors={
            **names.HUNYUAN_NORMS,
            **names.name_experts("mlp", "gate.wg"),
            **names.name_shared_experts("mlp.shared_mlp"),
        },
        more=mixtures.read_hunyuan_experts,
    ),
    "lfm2": Architecture(
        "lfm2",
        "Lfm2ForCausalLM",
        epsilons=_NORM_EPS,
        tensors=_EMBEDDING_NORM,
        layer_tensors=names.SHORT_CONVOLUTIONS,
        edits={"conv.conv.weight": edits.widen_convolution},
        more=hybrids.read_lfm2,
        varying=frozenset({KEY_HEADS}),
        without=frozenset({"head_dim"}),
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        epsilons=_NORM_EPS,
        tensors=_EMBEDDING_NORM,
        layer_tensors={
            **names.SHORT_CONVOLUTIONS,
            **names.name_experts("feed_forward", "gate"),
            "exp_probs_b.bias": "feed_forward.expert_bias",
        },
        edits={"conv.conv.weight": edits.widen_convolution},
        more=hybrids.read_lfm2_moe,
        varying=frozenset({KEY_HEADS}),
        without=frozenset({"head_dim"}),
    ),
    "llama4": Architecture(
        "llama4_text",
        "Llama4ForCausalLM",
        layer_tensors={
            **names.name_experts("feed_forward", "router"),
            **names.name_shared_experts("feed_forward.shared_expert"),
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        },
        edits={
            "experts.gate_up_proj": edits.transpose,
            "experts.down_proj": edits.transpose,
        },
        more=mixtures.read_llama4,
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        rotates_in_part=True,
        layer_tensors={**names.EXPERTS, "exp_probs_b.bias": "mlp.e_score_correction_bias"},
        more=mixtures.read_minimax,
    ),
    "mistral3": Architecture(
        "ministral3",
        "Ministral3ForCausalLM",
        edits=edits.INTERLEAVED,
        more=dense.read_ministral3,
    ),
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        rotates_in_part=True,
        epsilons={"attention.layer_norm_epsilon": "norm_eps"},
        edits=edits.NORMS_PLUS_ONE,
    ),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", layer_tensors=names.NORMS_AFTER),
    "olmoe": Architecture(
        "olmoe", "OlmoeForCausalLM", layer_tensors=names.EXPERTS, more=mixtures.read_olmoe
    ),
    "phi2": Architecture(
        "phi",
        "PhiForCausalLM",
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
        "Phi3ForCausalLM",
        rotates_in_part=True,
        layer_tensors={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        more=dense.read_phi3,
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        layer_tensors={**names.EXPERTS, **names.QWEN_SHARED},
        edits={"shared_expert_gate.weight": edits.join_shared},
        more=mixtures.read_qwen2_experts,
    ),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "qwen35": Architecture(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        rotates_in_part=True,
        layer_tensors=names.QWEN35,
        edits=edits.GROUPED_DELTA_NET,
        more=hybrids.read_qwen35,
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        rotates_in_part=True,
        layer_tensors={**names.QWEN35, **names.EXPERTS, **names.QWEN_SHARED},
        edits=edits.GROUPED_DELTA_NET,
        more=hybrids.read_qwen35_moe,
        varying=frozenset({"feed_forward_length"}),
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        layer_tensors=names.EXPERTS,
        more=mixtures.read_qwen_experts,
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        "Qwen3NextForCausalLM",
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
        more=hybrids.read_qwen3_next,
        varying=frozenset({"feed_forward_length"}),
    ),
    "seed_oss": Architecture(
        "seed_oss", "SeedOssForCausalLM", layer_tensors=names.SECOND_NORM, more=dense.read_biases
    ),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", edits=edits.INTERLEAVED),
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        epsilons={"attention.layer_norm_epsilon": "norm_epsilon"},
        layer_tensors={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        more=dense.read_starcoder2,
    ),
}
"""By ``general.architecture``. A name of a tensor is whole, or stands for its weight and its bias;
``/n`` in the name of a weight is the place among its parts."""
