"""Miniature models: as few layers as show every kind, and their settings."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.engine.checkpoints.parity.miniature import make_miniature

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SHARING: dict[str, dict[str, Any]] = {
    "gemma3n_text": {"num_hidden_layers": 35, "num_kv_shared_layers": 15, "laurel_rank": 8},
    "gemma4_text": {"num_hidden_layers": 35, "num_kv_shared_layers": 20, "global_head_dim": 32,
                    "use_double_wide_mlp": True},
}  # fmt: skip


def miniature_of(model_type: str, **options: Any) -> Any:
    config = AutoConfig.for_model(model_type, **SMALL, **options)
    make: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = make(config)
    return make_miniature(model, 4096, "eager", torch.float32)


@pytest.mark.parametrize("model_type", SHARING)
def test_layers_that_share_keys_and_values_are_few_and_of_every_kind(model_type: str) -> None:
    options = {**SHARING[model_type], "hidden_size_per_layer_input": 8}
    text = miniature_of(model_type, **options).config
    first_sharing = text.num_hidden_layers - text.num_kv_shared_layers
    kinds = {(kind, i >= first_sharing) for i, kind in enumerate(text.layer_types)}
    assert kinds == {
        (kind, shares)
        for kind in ("sliding_attention", "full_attention")
        for shares in (False, True)
    }
    assert text.num_hidden_layers <= 8


def test_a_layer_keeps_its_own_settings() -> None:
    """A global layer of Gemma 4 has larger heads, which its configuration gives by number."""
    options = {"num_hidden_layers": 12, "global_head_dim": 32, "hidden_size_per_layer_input": 8}
    layers = miniature_of("gemma4_text", **options).model.layers
    sizes = [layer.self_attn.head_dim for layer in layers]
    assert sizes == [16, 16, 16, 32]
