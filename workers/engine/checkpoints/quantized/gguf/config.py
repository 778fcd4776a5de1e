"""The configuration of transformers that a file's metadata stands for."""

from typing import Any

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from workers.engine.checkpoints.quantized.gguf.architecture import (
    HEADS,
    KEY_HEADS,
    Architecture,
    Source,
)
from workers.engine.checkpoints.quantized.gguf.positions import (
    LOG_MULTIPLIER,
    read_positions,
    refuse_log_multiplier,
)

_SIZES = {
    "context_length": "max_position_embeddings",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    HEADS: "num_attention_heads",
}
_TOKEN_IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
}
"""Metadata below `tokenizer.ggml`, and the field of the config."""
_BIASES = {"blk.0.attn_q.bias": "attention_bias", "blk.0.ffn_down.bias": "mlp_bias"}
"""Tensors that show a setting of the config. A model whose class has no such setting either always
has these biases, or takes none."""
EMBEDDING = "token_embd.weight"


def make_config(architecture: Architecture, source: Source) -> Any:
    """Return the configuration of a model.

    Raises KeyError for missing metadata, and ValueError for positions that cannot be read.
    """
    metadata = source.metadata
    sizes = {**_SIZES, **architecture.epsilons}
    fields = {
        field: metadata[key] for key, field in sizes.items() if key not in architecture.varying
    }
    fields["num_hidden_layers"] = source.num_layers
    if KEY_HEADS not in architecture.varying:
        fields["num_key_value_heads"] = metadata.get(KEY_HEADS, metadata[HEADS])
    fields |= {setting: True for tensor, setting in _BIASES.items() if tensor in source.shapes}
    for key, token in _TOKEN_IDS.items():
        fields[token] = source.tokens.get(key)
    head_size = fields["hidden_size"] // fields["num_attention_heads"]
    fields["head_dim"] = metadata.get("attention.key_length", head_size)
    turned = metadata.get("rope.dimension_count", fields["head_dim"])
    if turned != fields["head_dim"] and not architecture.rotates_in_part:
        raise ValueError(f"its rope.dimension_count is {turned}, not the size of a head")
    fields["rope_parameters"] = read_positions(source, fields["head_dim"])
    if architecture.rotates_in_part:
        fields["rope_parameters"]["partial_rotary_factor"] = turned / fields["head_dim"]
    fields |= {field: metadata[key] for field, key in architecture.fields.items()}
    fields |= {setting: source.has(tensor) for setting, tensor in architecture.shown.items()}
    fields |= architecture.constants
    fields |= architecture.more(source, fields)
    if LOG_MULTIPLIER in metadata and "mscale_all_dim" not in fields["rope_parameters"]:
        refuse_log_multiplier(metadata)
    return AutoConfig.for_model(
        architecture.model_type,
        **{name: value for name, value in fields.items() if name not in architecture.without},
        vocab_size=source.shapes[EMBEDDING][0],
        tie_word_embeddings="output.weight" not in source.shapes,
        architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[architecture.model_type]],
    )
