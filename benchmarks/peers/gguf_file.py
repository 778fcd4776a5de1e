"""Writes a Llama checkpoint as a GGUF file, its matrices rounded to one type of blocks."""

import json
from pathlib import Path
from typing import Any

from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

_CONTROL, _NORMAL = 3, 1


def write(folder: Path, target: Path, kind: str) -> None:
    """``kind`` is a type that the gguf package can write, such as ``Q8_0``. Raises the package's
    QuantError if the columns of a matrix are not a multiple of the type's block size."""
    config = AutoConfig.from_pretrained(folder)
    writer = GGUFWriter(target, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, folder, config)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    blocks = GGMLQuantizationType[kind]
    for name, tensor in load_file(folder / "model.safetensors").items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None, name
        values = tensor.float()
        if (part := name.split(".")[-2]) in heads:
            values = _by_pair(values, heads[part])
        if values.dim() > 1:
            writer.add_tensor(stored, quantize(values.numpy(), blocks), raw_dtype=blocks)
        else:
            writer.add_tensor(stored, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: GGUFWriter, folder: Path, config: Any) -> None:
    document = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = document["model"]["vocab"]
    special = {token["content"]: token["id"] for token in document["added_tokens"]}
    tokens = {id: token for token, id in (vocabulary | special).items()}
    in_order = [tokens[id] for id in range(len(tokens))]
    merges = document["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(in_order)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in in_order])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def _by_pair(values: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from (half, pair) to (pair, half)."""
    by_half = values.view(heads, 2, -1, *values.shape[1:])
    return by_half.swapaxes(1, 2).reshape(values.shape)
