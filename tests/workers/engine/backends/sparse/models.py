"""Tiny models whose layers choose their tokens by an indexer."""

from pathlib import Path
from typing import Any

from tests.workers.engine.tiny_models import LLAMA, save_model

CHOSEN = 16
"""So many tokens each row attends to."""
_SPARSE: dict[str, Any] = {
    **LLAMA, "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 32,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "index_topk": CHOSEN, "index_n_heads": 16, "index_head_dim": 16,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {**_SPARSE, "indexer_types": ["full", "shared", "full"]},
    "deepseek_v32": _SPARSE,
    "minimax_m3_vl_text": {
        **LLAMA,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "dense_intermediate_size": 64,
        "shared_intermediate_size": 32,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 4,
        "index_topk_blocks": CHOSEN // 4,
    },
}
"""Layers of GLM-5 may attend to what an earlier one chose; the first two rotate index keys in
different ways; the third chooses spans of four tokens."""


def save(folder: Path, family: str, **options: Any) -> Path:
    return save_model(folder, {**FAMILIES[family], "model_type": family, **options})
