"""The configurations that are tried: the model type, and what it needs beside ``shapes.SIZES``.

Windows, chunks and the lengths of rotary embeddings are shorter than the longest sequence.
"""

from typing import Any, NamedTuple

from tests.conformance.families.shapes import VOCAB_SIZE


class Case(NamedTuple):
    """One configuration. A ``note`` distinguishes variants of a family."""

    family: str
    note: str = ""
    options: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.family} {self.note}".strip()


_MLA = {"num_key_value_heads": 4, "head_dim": None}
_UNTIED = {"tie_word_embeddings": False}
_DECODER = {"is_decoder": True}
_SEQ2SEQ = {"is_decoder": True, "is_encoder_decoder": False, "tie_word_embeddings": False}
_PER_LAYER = {"vocab_size_per_layer_input": 416, "hidden_size_per_layer_input": 8, **_UNTIED}
_SPARSE_FOUR = {"num_hidden_layers": 4}
_GLOBAL = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}

_BOTH = ["sliding_attention", "full_attention"]
_ALTERNATING = _BOTH * 3


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **settings}}


def _longrope(dim: int, **settings: Any) -> dict[str, Any]:
    short = [1.0 + 0.1 * i for i in range(dim // 2)]
    long = [1.5 + 0.7 * i for i in range(dim // 2)]
    lengths = {"original_max_position_embeddings": 32}
    factors = {"short_factor": short, "long_factor": long, "factor": 16.0}
    return {**_rope("longrope", **factors, **lengths, **settings), **lengths}


def _windows(size: int, **options: Any) -> dict[str, Any]:
    return {"sliding_window": size, "use_sliding_window": True, "max_window_layers": 1, **options}


_PLAIN = (
    "apertus", "arcee", "aria_text", "biogpt", "bitnet", "bloom", "cohere", "ctrl", "cwm",
    "diffllama", "doge", "ernie4_5", "ernie4_5_moe", "falcon_mamba", "flex_olmo", "gemma",
    "glm", "glm4", "glm4_moe", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_neox_japanese", "gpt_oss", "granite", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoeshared", "helium", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3",
    "hy_v4", "hyperclovax", "internlm3", "iquestcoder", "jais2", "jetmoe", "laguna", "lfm2",
    "llama", "llama4_text", "mamba", "mellum", "mimo_v2_flash", "minimax", "minimax_m2",
    "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder",
    "moshi", "nanochat", "nemotron", "olmo", "olmo2", "olmo_hybrid", "olmoe", "persimmon",
    "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "rwkv", "seed_oss",
    "smollm3", "solar_open", "stablelm", "starcoder2", "vaultgemma",
)  # fmt: skip

_MIXED: dict[str, dict[str, Any]] = {
    "afmoe": _GLOBAL,
    "beam": {"mlp_layer_types": ["dense", "sparse"]},
    "cohere2": _GLOBAL,
    "cohere2_moe": {**_GLOBAL, "mlp_layer_types": ["sparse"] * 3},
    "deepseek_v4": {"layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
                    "mlp_layer_types": ["hash_moe", "moe"]},
    "exaone4": _GLOBAL,
    "exaone_moe": {**_GLOBAL, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    "flint": {"layer_types": ["full_attention", "sliding_attention"]},
    "inkling2_text": {"layer_types": ["hybrid_sliding", "hybrid"]},
    "inkling_text": {"layer_types": ["hybrid_sliding", "hybrid"]},
    "kolibri1": _GLOBAL,
    "lfm3": {"num_hidden_layers": 4,
             "layer_types": ["conv", "full_attention", "conv", "sliding_attention"]},
    "olmo3": _GLOBAL,
}  # fmt: skip
"""Families whose first two layers are not all the kinds that they have."""

_LATENT = ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32",
           "glm4_moe_lite", "glm_moe_dsa", "minicpm3", "youtu")  # fmt: skip
"""With multi-head latent attention."""

_ENCODERS = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
    "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta",
    "xlm-roberta-xl",
)  # fmt: skip
"""Encoders that ``is_decoder`` makes causal."""

_SEQ2SEQ_DECODERS = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp",
    "pegasus", "plbart", "prophetnet", "trocr", "whisper",
)  # fmt: skip
"""The decoders of encoder-decoder models, alone."""

_MORE: tuple[Case, ...] = (
    Case("bailing_hybrid", "", {**_SPARSE_FOUR, **_MLA, "layer_group_size": 2}),
    Case("bamba", "", {"num_hidden_layers": 4, "attn_layer_indices": [1, 3]}),
    Case("codegen", "", {"rotary_dim": 16}),
    Case("cpmant", "", {"dim_ff": 96, "dim_head": 16, "prompt_types": 4, "prompt_length": 4,
                        "segment_types": 4}),
    Case("cohere2", "w32", {**_GLOBAL, "sliding_window": 32}),
    Case("dbrx", "", {"n_heads": 4, "n_layers": 2, "attn_config": {
        "kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8}, "ffn_config": {
        "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}}),
    Case("deepseek_v3", "yarn", {**_MLA, **_rope("yarn", factor=4.0, mscale=1.0, mscale_all_dim=1.0,
                                 original_max_position_embeddings=32)}),
    Case("deepseek_v32", "topk 8", {**_MLA, "index_topk": 8}),
    Case("deepseek_v4", "topk 8", {**_MIXED["deepseek_v4"], "index_topk": 8, "compress_rates": {
        "heavily_compressed_attention": 8, "compressed_sparse_attention": 4}}),
    Case("dots1", "", {"n_shared_experts": 1}),
    Case("dots1", "windows", {"n_shared_experts": 1, "layer_types": _BOTH, "sliding_window": 16}),
    Case("dots3_note_text", "", {**_MLA, "layer_types": [
        "indexed_attention", "sliding_attention"]}),
    Case("exaone4", "w32", {**_GLOBAL, "sliding_window": 32}),
    Case("falcon", "alibi", {"alibi": True}),
    Case("falcon", "rotary", {"alibi": False}),
    Case("falcon", "new architecture", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    Case("falcon_h1", "", {"mamba_d_ssm": 128}),
    Case("flint", "w33", {**_MIXED["flint"], "sliding_window": 33}),
    Case("gemma", "untied", _UNTIED),
    Case("gemma2", "", _UNTIED),
    Case("gemma2", "w32", {"sliding_window": 32, **_UNTIED}),
    Case("gemma3_text", "", {**_GLOBAL, **_UNTIED}),
    Case("gemma3_text", "bidirectional", {"use_bidirectional_attention": True, **_UNTIED}),
    Case("gemma3n_text", "", {"num_hidden_layers": 6, "num_kv_shared_layers": 2, **_PER_LAYER,
                              "layer_types": _ALTERNATING,
                              "activation_sparsity_pattern": [0.0] * 6, "laurel_rank": 8}),
    Case("gemma3n_text", "no shared kv", {"num_hidden_layers": 2, "num_kv_shared_layers": 0,
                              "layer_types": ["sliding_attention", "full_attention"], **_PER_LAYER,
                              "activation_sparsity_pattern": [0.0] * 2, "laurel_rank": 8}),
    Case("gemma4_text", "", {**_GLOBAL, **_PER_LAYER}),
    Case("gemma4_text", "shared kv", {"num_hidden_layers": 6, "num_kv_shared_layers": 2,
                                      "layer_types": _ALTERNATING, **_PER_LAYER}),
    Case("gemma4_text", "experts", {**_GLOBAL, "enable_moe_block": True, "top_k_experts": 2,
                                    **_PER_LAYER}),
    Case("gemma4_unified_text", "", {**_GLOBAL, **_UNTIED}),
    Case("glm_moe_dsa", "shared", {**_MLA, "index_topk": 8, "num_hidden_layers": 3,
                                   "indexer_types": ["full", "shared", "full"]}),
    Case("glm_moe_dsa", "topk 8", {**_MLA, "index_topk": 8}),
    Case("glm_moe_dsa", "topk 128", {**_MLA, "index_topk": 128}),
    Case("gpt2", "inverse layer scale", {"scale_attn_by_inverse_layer_idx": True}),
    Case("gpt_neo", "", {"attention_types": [[["global", "local"], 1]], "window_size": 16}),
    Case("gpt_neox", "serial", {"use_parallel_residual": False}),
    Case("gpt_oss", "w33", {"sliding_window": 33}),
    Case("gptj", "", {"rotary_dim": 16}),
    Case("granitemoehybrid", "", {"num_hidden_layers": 4, "layer_types": [
        "mamba", "full_attention", "mamba", "full_attention"]}),
    Case("granitemoehybrid", "attention only", {"layer_types": ["full_attention"] * 2}),
    Case("granitemoehybrid", "dense", {"layer_types": ["full_attention"] * 2,
                                       "num_local_experts": 0,
                                       "position_embedding_type": "rope"}),
    Case("jamba", "", {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8,
                       "mamba_dt_rank": 8}),
    Case("kimi_linear", "", {"num_hidden_layers": 5, **_MLA, "linear_head_dim": 16,
                             "linear_num_heads": 4}),
    Case("laguna", "windows", {"layer_types": _BOTH}),
    Case("lfm2", "alternating", {"layer_types": ["conv", "full_attention"]}),
    Case("lfm2_moe", "", {"num_hidden_layers": 4, "num_dense_layers": 1, "layer_types": [
        "conv", "full_attention", "conv", "full_attention"]}),
    Case("llama", "head_dim 24", {"head_dim": 24}),
    Case("llama", "biases", {"attention_bias": True, "mlp_bias": True}),
    Case("llama", "tied", {"tie_word_embeddings": True}),
    Case("llama", "rope linear", _rope("linear", factor=4.0)),
    Case("llama", "rope dynamic", _rope("dynamic", factor=4.0)),
    Case("llama", "rope dynamic past its length", {
        **_rope("dynamic", factor=4.0, original_max_position_embeddings=32)}),
    Case("llama", "rope llama3", _rope("llama3", factor=8.0, low_freq_factor=1.0,
                                       high_freq_factor=4.0, original_max_position_embeddings=32)),
    Case("llama", "rope yarn", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    Case("llama", "rope longrope", _longrope(16)),
    Case("llama4_text", "chunk 16", {"attention_chunk_size": 16}),
    Case("llama4_text", "tuned", {"attention_chunk_size": 256, "attn_temperature_tuning": True,
                                  "floor_scale": 16, "num_hidden_layers": 4}),
    Case("longcat_flash", "", {**_MLA, "head_dim": 8, "zero_expert_num": 2, "moe_topk": 2,
                               "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32}),
    Case("mamba2", "", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1}),
    Case("mellum", "windows", {"layer_types": _BOTH}),
    Case("minimax_m3_vl_text", "sparse", {
        "layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2,
        "index_block_size": 8, "index_topk_blocks": 2}),
    Case("ministral", "mixed", {"layer_types": _BOTH}),
    Case("ministral", "w32", {"sliding_window": 32}),
    Case("ministral3", "tuned", _rope("yarn", factor=4.0, original_max_position_embeddings=16,
                                      llama_4_scaling_beta=0.5, beta_fast=32.0, beta_slow=1.0,
                                      mscale=1.0, mscale_all_dim=1.0)),
    Case("mistral", "w33", {"sliding_window": 33}),
    Case("mpt", "", {"tie_word_embeddings": False}),
    Case("nemotron_h", "", {"num_hidden_layers": 4, "ssm_state_size": 16, "n_groups": 1,
                            "mamba_num_heads": 4, "mamba_head_dim": 32,
                            "moe_shared_expert_intermediate_size": 32}),
    Case("olmo", "clip", {"clip_qkv": 2.0}),
    Case("olmo3", "w32 yarn", {**_GLOBAL, "sliding_window": 32, **_rope(
        "yarn", factor=4.0, original_max_position_embeddings=32)}),
    Case("openai-gpt", "", _UNTIED),
    Case("opt", "", _UNTIED),
    Case("opt", "projected", {"word_embed_proj_dim": 32, **_UNTIED}),
    Case("phi", "qk_layernorm", {"qk_layernorm": True, "num_key_value_heads": 4}),
    Case("phi3", "w32 partial", {"sliding_window": 32, "partial_rotary_factor": 0.5}),
    Case("phi3", "longrope", {"sliding_window": None, **_longrope(16)}),
    Case("phimoe", "w32", {"sliding_window": 32}),
    Case("phimoe", "longrope", {"sliding_window": None,
                                **_longrope(16, short_mscale=1.1, long_mscale=1.2)}),
    Case("qwen2", "windows w32", _windows(32)),
    Case("qwen2_moe", "windows w16", _windows(16)),
    Case("qwen2_moe", "windows w32", _windows(32)),
    Case("qwen3", "windows", _windows(16)),
    Case("qwen3", "tied yarn", {"tie_word_embeddings": True, **_rope(
        "yarn", factor=4.0, original_max_position_embeddings=32)}),
    Case("qwen3_moe", "windows", _windows(16)),
    Case("qwen3_5_moe_text", "", _SPARSE_FOUR),
    Case("qwen3_5_text", "", _SPARSE_FOUR),
    Case("qwen3_next", "", _SPARSE_FOUR),
    Case("recurrent_gemma", "", {"num_hidden_layers": 3, "lru_width": 64, **_UNTIED,
                                 "attention_window_size": 16}),
    Case("reformer", "", {"is_decoder": True, "axial_pos_shape": [16, 32],
                          "axial_pos_embds_dim": [32, 32], "attn_layers": ["local", "lsh"],
                          "attention_head_size": 16, "feed_forward_size": 96, "num_buckets": 4,
                          "hash_seed": 0,
                          "local_attn_chunk_length": 16, "lsh_attn_chunk_length": 16}),
    Case("roc_bert", "", {"is_decoder": True, "pronunciation_vocab_size": VOCAB_SIZE,
                          "shape_vocab_size": VOCAB_SIZE, "pronunciation_embed_dim": 8,
                          "shape_embed_dim": 8}),
    Case("smollm3", "w32", _windows(32, layer_types=["sliding_attention", "full_attention"])),
    Case("smollm3", "without positions", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 0, 1]}),
    Case("stablelm", "qk parallel", {"qk_layernorm": True, "use_parallel_residual": True}),
    Case("starcoder2", "w32", {"sliding_window": 32}),
    Case("xglm", "", _UNTIED),
    Case("xlm", "", {"n_langs": 1, "causal": True, **_UNTIED}),
    Case("xlnet", "", {"d_inner": 96, "n_layer": 2, "n_head": 4, "d_head": 16,
                       "max_position_embeddings": None}),
    Case("xlstm", "", {"qk_dim_factor": 1.0}),
    Case("xmod", "", {"is_decoder": True, "languages": ["en_XX"], "default_language": "en_XX"}),
    Case("zamba", "", {"num_hidden_layers": 4, "attention_hidden_size": 128, "n_mamba_heads": 2,
                       "attention_head_dim": 32, "mamba_dt_rank": 8, "num_key_value_heads": 4,
                       "attn_layer_period": 2, "attn_layer_offset": 1, "layers_block_type": [
                           "mamba", "hybrid", "mamba", "hybrid"]}),
    Case("zamba2", "", {"num_hidden_layers": 4, "mamba_ngroups": 1, "n_mamba_heads": 8,
                        "mamba_headdim": 16, "mamba_d_state": 16, "attention_head_dim": 32,
                        "num_key_value_heads": 4, "adapter_rank": 8, "use_mem_rope": True,
                        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]}),
    Case("zaya", "", {"num_experts_per_tok": 1}),
    Case("zaya", "windows", {"num_experts_per_tok": 1,
                             "layer_types": ["hybrid", "hybrid_sliding"]}),
)  # fmt: skip

_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                               "mrope_section": [2, 3, 3]}}  # fmt: skip
_WITH_IMAGES: tuple[Case, ...] = (
    Case("aya_vision", "", _GLOBAL),
    Case("cohere2_vision", "", _GLOBAL),
    Case("glm4v", "", _MROPE),
    Case("idefics3"),
    Case("internvl"),
    Case("internvl", "windows", _windows(16)),
    Case("kimi_k25", "", _MLA),
    Case("lfm2_vl", "", {"layer_types": ["conv", "full_attention"]}),
    Case("llava"),
    Case("llava_onevision"),
    Case("llava_onevision", "windows", _windows(16)),
    Case("mistral3"),
    Case("mistral3", "ministral3", {"model_type": "ministral3"}),
    Case("qwen2_5_vl", "", _MROPE),
    Case("qwen2_5_vl", "windows", {**_MROPE, **_windows(16)}),
    Case("qwen2_vl", "", _MROPE),
    Case("qwen2_vl", "windows", {**_MROPE, **_windows(16)}),
    Case("qwen3_vl", "", _MROPE),
    Case("qwen3_vl_moe", "", {**_MROPE, "sliding_window": None}),
    Case("smolvlm"),
)
"""Models of images and text, which serve text alone."""

CASES: tuple[Case, ...] = tuple(
    sorted(
        [
            *(Case(family) for family in _PLAIN),
            *(Case(family, "", options) for family, options in _MIXED.items()),
            *(Case(family, "", _MLA) for family in _LATENT),
            *(Case(family, "decoder", _DECODER) for family in _ENCODERS),
            *(Case(family, "decoder", _SEQ2SEQ) for family in _SEQ2SEQ_DECODERS),
            *_MORE,
            *_WITH_IMAGES,
        ],
        key=str,
    )
)
