"""Engines of tiny models with small blocks and short chunks, and what such models say by
themselves."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import AttentionBackend
from workers.engine.engine import Engine

SETTINGS: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 24,
    "block_size": 4, "kv_cache_bytes": 2**23, "max_model_len": 256,
}  # fmt: skip


def build_tight(path: Path, **settings: Any) -> Engine:
    """Return an engine that runs the model's modules over pages."""
    engine = build_engine(path, EngineConfig(**{**SETTINGS, **settings}))
    assert engine.forward == "torch"
    return engine


@torch.inference_mode()
def own_logits(model: Any, backend: AttentionBackend, texts: list[list[int]]) -> Tensor:
    """Return the logits [tokens, vocabulary] of whole texts by the model's own attention."""
    model.set_attn_implementation("eager")
    rows = [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]
    model.set_attn_implementation(backend.attention)
    return torch.cat(rows)
