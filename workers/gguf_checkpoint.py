"""A GGUF file as a folder in the transformers layout: weights, config, tokenizer, chat template.

The weights go from tensor to tensor; no model is built. Tensor names and the order of rows are
those of llama.cpp, https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast

from workers import gguf_file
from workers.gguf_file import GgufFile, GgufTensor


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What sets one kind of decoder apart from the others."""

    model_class: str
    interleaved: bool = False
    """Whether the rows of queries and keys are stored as pairs of rotary positions."""


_ARCHITECTURES = {
    "llama": _Architecture("LlamaForCausalLM", interleaved=True),
    "qwen2": _Architecture("Qwen2ForCausalLM"),
    "qwen3": _Architecture("Qwen3ForCausalLM"),
}
"""By `general.architecture`, which is also the `model_type` of transformers."""
_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
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
_SIZES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""Metadata below `general.architecture`, and the field of the config."""
_TOKEN_IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
}
"""Metadata below `tokenizer.ggml`, and the field of the config."""


def convert(source: Path, target: Path, dtype: str) -> None:
    """Write the model of the GGUF file `source` into the folder `target`, in `dtype`.

    Raises OSError, and ValueError for an architecture or a tensor that this does not know.
    """
    gguf = gguf_file.read(source)
    name = gguf.metadata["general.architecture"]
    architecture = _ARCHITECTURES.get(name)
    if architecture is None:
        raise ValueError(f"GGUF architecture {name!r} is not one of {', '.join(_ARCHITECTURES)}")
    config = _config(gguf, architecture, dtype)
    target.mkdir()
    config.save_pretrained(target)
    GenerationConfig.from_model_config(config).save_pretrained(target)
    save_file(
        _state(gguf, architecture, getattr(torch, dtype)),
        target / "model.safetensors",
        metadata={"format": "pt"},
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(target)


def _config(gguf: GgufFile, architecture: _Architecture, dtype: str) -> Any:
    metadata = gguf.metadata
    name = metadata["general.architecture"]
    fields = {field: metadata[f"{name}.{key}"] for key, field in _SIZES.items()}
    for key, field in _TOKEN_IDS.items():
        fields[field] = metadata.get(f"tokenizer.ggml.{key}")
    head_size = fields["hidden_size"] // fields["num_attention_heads"]
    return AutoConfig.for_model(
        name,
        **fields,
        head_dim=metadata.get(f"{name}.attention.key_length", head_size),
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        tie_word_embeddings="output.weight" not in gguf.tensors,
        architectures=[architecture.model_class],
        _model_name_or_path=metadata.get("general.name", ""),
        dtype=dtype,
    )


def _state(
    gguf: GgufFile, architecture: _Architecture, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The weights by their names in transformers."""
    arch = gguf.metadata["general.architecture"]
    heads = {
        "attn_q": gguf.metadata[f"{arch}.attention.head_count"],
        "attn_k": gguf.metadata[f"{arch}.attention.head_count_kv"],
    }
    state = {}
    for name, tensor in gguf.tensors.items():
        part = name.split(".")[-2]
        pairs_of = heads.get(part) if architecture.interleaved else None
        state[_name(name)] = _weight(tensor, pairs_of).to(dtype)
    return state


def _name(name: str) -> str:
    """A tensor's name in transformers. Raises ValueError."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer is not None and layer[2] in _LAYER_TENSORS:
        return f"model.layers.{layer[1]}.{_LAYER_TENSORS[layer[2]]}.{layer[3]}"
    part, _, kind = name.rpartition(".")
    if part not in _TENSORS:
        raise ValueError(f"no tensor of the model takes {name!r} of the GGUF file")
    return f"{_TENSORS[part]}.{kind}"


def _weight(tensor: GgufTensor, interleaved_heads: int | None) -> torch.Tensor:
    """The values in float32. With `interleaved_heads`, rows (pair, half) of each head become rows
    (half, pair), as transformers rotates them."""
    values = torch.from_numpy(np.require(tensor.dequantized(), requirements="W"))
    if interleaved_heads is None:
        return values
    by_pair = values.view(interleaved_heads, -1, 2, *values.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(values.shape)
