"""How the architectures of GGUF files map to those of transformers: settings and tensor names.

Names, and the ways in which stored values differ, follow llama.cpp,
https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

Metadata = Mapping[str, Any]
"""The metadata of a file's model, by key without the architecture in front."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one kind of decoder differs from the common form."""

    model_type: str
    model_class: str
    interleaved: bool = False
    """Whether the rows of queries and keys are stored as pairs of rotary positions."""
    rotates_in_part: bool = False
    """Whether rotary positions may turn a part of each head only."""
    norms_plus_one: bool = False
    """Whether norms are stored as their full factors, where transformers stores factors minus 1."""
    layer_tensors: Mapping[str, str] = field(default_factory=dict)
    """Tensor names that extend or override :data:`LAYER_TENSORS`."""
    more: Callable[[Metadata, dict[str, Any]], dict[str, Any]] = lambda metadata, fields: {}
    """Further fields of the config, from the metadata and the fields so far."""


TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
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
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_up_proj/0",
    "ffn_up_exps": "mlp.experts.gate_up_proj/1",
    "ffn_down_exps": "mlp.experts.down_proj/0",
}
HEADS, KEY_HEADS = "attention.head_count", "attention.head_count_kv"
"""Metadata with the numbers of heads. Without the second one, each head has its own keys."""
_SIZES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    HEADS: "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_TOKEN_IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
}
"""Metadata below `tokenizer.ggml`, and the field of the config."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_TRAINED = 8192
"""The settings of Llama 3.1 to 3.3; a file holds only the factors that follow from them."""
_THETA = 10000.0
_BIASES = {"blk.0.attn_q.bias": "attention_bias", "blk.0.ffn_down.bias": "mlp_bias"}
"""Tensors that show a setting of the config. A model whose class has no such setting either always
has these biases, or takes none."""
_OF_YARN = {
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_ATTENTION = {"rope.scaling.attn_factor": 1.0}
_NOT_OF_YARN = {"rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0}
"""Settings that are not mapped to transformers, and the values that change nothing."""
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_GEMMA3_PATTERN = 6


def make_config(
    architecture: Architecture,
    metadata: Metadata,
    tokens: Metadata,
    vocab_size: int,
    tensors: Collection[str],
    frequencies: Tensor | None,
) -> Any:
    """Return the configuration of a model. ``tokens`` is the metadata below ``tokenizer.ggml``,
    ``tensors`` are the names of the file's tensors, and ``frequencies`` what the angles of rotary
    positions are divided by.

    Raises KeyError for missing metadata, and ValueError for positions that cannot be read.
    """
    fields = {field: metadata[key] for key, field in _SIZES.items()}
    fields["num_key_value_heads"] = metadata.get(KEY_HEADS, metadata[HEADS])
    fields |= {setting: True for tensor, setting in _BIASES.items() if tensor in tensors}
    for key, token in _TOKEN_IDS.items():
        fields[token] = tokens.get(key)
    head_size = fields["hidden_size"] // fields["num_attention_heads"]
    fields["head_dim"] = metadata.get("attention.key_length", head_size)
    turned = metadata.get("rope.dimension_count", fields["head_dim"])
    if turned != fields["head_dim"] and not architecture.rotates_in_part:
        raise ValueError(f"its rope.dimension_count is {turned}, not the size of a head")
    fields["rope_parameters"] = _rope(metadata, frequencies, fields["head_dim"])
    fields |= architecture.more(metadata, fields)
    return AutoConfig.for_model(
        architecture.model_type,
        **fields,
        vocab_size=vocab_size,
        tie_word_embeddings="output.weight" not in tensors,
        architectures=[architecture.model_class],
    )


def _rope(metadata: Metadata, frequencies: Tensor | None, head_dim: int) -> dict[str, Any]:
    _refuse_other_values(metadata, _ATTENTION)
    rope: dict[str, Any] = {"rope_theta": metadata.get("rope.freq_base", _THETA)}
    factor = metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear"))
    kind = metadata.get("rope.scaling.type", "linear" if factor else "none")
    if frequencies is not None and float(frequencies.max()) != 1:
        return _llama3_rope(rope, frequencies, head_dim)
    if kind == "none":
        return rope | {"rope_type": "default"}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"its rotary positions are of the type {kind!r}: linear and yarn are read")
    if not factor:
        raise ValueError(f"its rotary positions of the type {kind!r} have no rope.scaling.factor")
    rope |= {"rope_type": kind, "factor": factor}
    return rope | _read_yarn(metadata) if kind == "yarn" else rope


def _read_yarn(metadata: Metadata) -> dict[str, Any]:
    """Return the settings of YaRN beside its factor. Raises ValueError."""
    _refuse_other_values(metadata, _NOT_OF_YARN)
    length = metadata.get("rope.scaling.original_context_length", metadata["context_length"])
    fields = {field: metadata[key] for key, field in _OF_YARN.items() if key in metadata}
    return {"original_max_position_embeddings": length, **fields}


def _refuse_other_values(metadata: Metadata, neutral: Mapping[str, float]) -> None:
    for key, value in neutral.items():
        if (actual := metadata.get(key, value)) != value:
            raise ValueError(f"its {key} is {actual}: only {value} is read")


def _llama3_rope(rope: dict[str, Any], frequencies: Tensor, head_dim: int) -> dict[str, Any]:
    """Return the settings that lead to these factors. Raises ValueError if those of Llama 3 do
    not."""
    factor = round(float(frequencies.max()), 3)
    turns = torch.arange(0, head_dim, 2) / head_dim
    lengths = 2 * math.pi * rope["rope_theta"] ** turns
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = ((_LLAMA3_TRAINED / lengths - low) / (high - low)).clamp(0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if frequencies.shape != expected.shape or not torch.allclose(frequencies, expected, rtol=1e-3):
        raise ValueError("rope_freqs.weight are not the factors of Llama 3")
    return (
        rope
        | _LLAMA3
        | {
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": _LLAMA3_TRAINED,
        }
    )


def _read_gemma2(metadata: Metadata, fields: dict[str, Any]) -> dict[str, Any]:
    is_27b = fields["num_hidden_layers"] == _GEMMA2_27B_LAYERS
    return {
        "attn_logit_softcapping": metadata["attn_logit_softcapping"],
        "final_logit_softcapping": metadata["final_logit_softcapping"],
        "sliding_window": metadata["attention.sliding_window"],
        "query_pre_attn_scalar": _per_head(fields) if is_27b else fields["head_dim"],
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _read_gemma3(metadata: Metadata, fields: dict[str, Any]) -> dict[str, Any]:
    is_27b = fields["num_hidden_layers"] == _GEMMA3_27B_LAYERS
    kinds = ["sliding_attention"] * (_GEMMA3_PATTERN - 1) + ["full_attention"]
    return {
        "sliding_window": metadata["attention.sliding_window"],
        "query_pre_attn_scalar": _per_head(fields) if is_27b else fields["head_dim"],
        "layer_types": [kinds[i % _GEMMA3_PATTERN] for i in range(fields["num_hidden_layers"])],
        "rope_parameters": {
            "full_attention": fields["rope_parameters"],
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.get("rope.freq_base_swa", _THETA),
            },
        },
    }


def _per_head(fields: Mapping[str, Any]) -> int:
    size: int = fields["hidden_size"] // fields["num_attention_heads"]
    return size


def _read_phi3(metadata: Metadata, fields: dict[str, Any]) -> dict[str, Any]:
    rotated = metadata.get("rope.dimension_count", fields["head_dim"]) / fields["head_dim"]
    window = metadata.get("attention.sliding_window") or None
    return {
        "partial_rotary_factor": rotated,
        "sliding_window": window,
        "rope_parameters": fields["rope_parameters"] | {"partial_rotary_factor": rotated},
    }


def _read_mixtral(metadata: Metadata, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_local_experts": metadata["expert_count"],
        "num_experts_per_tok": metadata["expert_used_count"],
    }


def _read_qwen_experts(metadata: Metadata, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_experts": metadata["expert_count"],
        "num_experts_per_tok": metadata["expert_used_count"],
        "moe_intermediate_size": metadata["expert_feed_forward_length"],
        "norm_topk_prob": True,
    }


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        layer_tensors=_EXPERTS,
        more=_read_qwen_experts,
    ),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        norms_plus_one=True,
        layer_tensors=_FOUR_NORMS,
        more=_read_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        norms_plus_one=True,
        layer_tensors=_FOUR_NORMS,
        more=_read_gemma3,
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        rotates_in_part=True,
        layer_tensors={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        more=_read_phi3,
    ),
}
"""By ``general.architecture``. ``/n`` in a name is the place among the parts of one parameter."""
_WITH_EXPERTS = {
    "llama": Architecture(
        "mixtral",
        "MixtralForCausalLM",
        interleaved=True,
        layer_tensors=_EXPERTS,
        more=_read_mixtral,
    ),
}
"""The same for files that state experts."""
_NO_MODELS = {
    "adapter": "a LoRA adapter: give adapters in PEFT's layout",
    "mmproj": "the part of a model that sees images: name the file of the language model",
    "imatrix": "statistics for quantizing: name the file of the model",
}
"""By ``general.type``."""


def find_architecture(name: str, kind: str | None, metadata: Metadata) -> Architecture:
    """Return the architecture of a file by its ``general.architecture`` and ``general.type``.
    Raises ValueError."""
    if kind in _NO_MODELS or name in _NO_MODELS or name == "clip":
        what = _NO_MODELS.get(kind or "", _NO_MODELS.get(name, _NO_MODELS["mmproj"]))
        raise ValueError(f"the GGUF file holds {what}")
    experts = metadata.get("expert_count")
    table = _WITH_EXPERTS if experts and name in _WITH_EXPERTS else ARCHITECTURES
    if name not in table:
        raise ValueError(
            f"GGUF files of the architecture {name!r} are not read, only {', '.join(ARCHITECTURES)}"
        )
    return table[name]
