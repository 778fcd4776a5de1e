"""Constrained requests to models whose output layer is wider than their tokenizer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.service import Installation
from tests.workers.engine.tiny_models import LLAMA, byte_level_tokenizer, save_model

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

TOKENS = byte_level_tokenizer().get_vocab_size(with_added_tokens=True)
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5": {"model_type": "qwen2", "vocab_size": TOKENS + 271, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "vocab_size": TOKENS + 267, "head_dim": 32},
    "glm-4": {"model_type": "glm4", "vocab_size": TOKENS + 209, "head_dim": 16},
    "gemma-3": {"model_type": "gemma3_text", "vocab_size": TOKENS + 63, "head_dim": 32,
                "sliding_window": 16},
    "deepseek-v3": {"model_type": "deepseek_v3", "vocab_size": TOKENS + 465, "kv_lora_rank": 32,
                    "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 32,
                    "v_head_dim": 16, "num_key_value_heads": 4, "n_routed_experts": 4,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2,
                    "topk_group": 1, "first_k_dense_replace": 1},
}  # fmt: skip
"""The model type and the extra ids of each family's usual checkpoint."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


class PaddedModels(Installation):
    """One tiny random model of each shape, and no other."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, QUIRE_SHUTDOWN_GRACE="1")
        tables = []
        for name, options in SHAPES.items():
            folder = save_model(home / name, {**LLAMA, **options})
            tables.append(f'[models."{name}"]\npath = "{folder}"\ntext_prompts = true\n')
        (home / "models.toml").write_text("".join(tables))


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with PaddedModels(tmp_path_factory.mktemp("padded")) as installation:
        for name in SHAPES:
            installation.wait_served(name)
        yield installation


@pytest.mark.parametrize("model", SHAPES)
def test_a_constrained_request_keeps_to_the_tokenizer(padded: Installation, model: str) -> None:
    constraints: list[dict[str, Any]] = [
        {"regex": "[a-z]{3}-[0-9]{2}"},
        {"json_schema": SCHEMA, "logprobs": 2},
        {"regex": "the quick brown fox (jumps|sleeps)", "n": 2},
        {"logprobs": 2},
    ]
    with padded.http() as client:
        for constraint in constraints:
            body = {"model": model, "prompt": "the ", "max_tokens": 60, "seed": 7, **constraint}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            for choice in answer.json()["choices"]:
                if "json_schema" in constraint:
                    assert set(json.loads(choice["text"])) == {"name", "ok"}
                elif "regex" in constraint:
                    assert choice["finish_reason"] == "stop"
        assert client.get(f"/v1/models/{model}").json()["capabilities"]["forward"] == "c"
