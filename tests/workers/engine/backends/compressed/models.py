"""Tiny models of DeepSeek-V4, with a layer of each kind."""

from pathlib import Path
from typing import Any

from tests.workers.engine.tiny_models import LLAMA, save_model

CHOSEN = 5
"""So many entries of four tokens each row attends to, where it chooses."""
FEW, MANY = 4, 8
"""So many tokens have an entry together, in a layer that chooses and in one that does not."""
WINDOW = 9
SHAPE: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "layer_types": [
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "sliding_attention",
        "compressed_sparse_attention",
    ],
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    "compress_rates": {
        "heavily_compressed_attention": MANY,
        "compressed_sparse_attention": FEW,
    },
    "sliding_window": WINDOW,
    "head_dim": 16,
    "num_key_value_heads": 1,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 8,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": CHOSEN,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def save(folder: Path, **options: Any) -> Path:
    return save_model(folder, {**SHAPE, **options})
