"""Experts as batched products say the same, and only where torch's grouped product would wait."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from workers.engine.backends.cuda.experts import experts_that_do_not_wait

HERE = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Any:
    config = Qwen3MoeConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, head_dim=16,
        num_key_value_heads=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        intermediate_size=32,
    )  # fmt: skip
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    return make(config, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("capability", "dtype", "changes"),
    [
        ((8, 9), torch.bfloat16, True),
        ((9, 0), torch.float16, True),
        ((9, 0), torch.bfloat16, False),
        ((12, 0), torch.bfloat16, False),
    ],
)
def test_experts_run_batched_where_the_grouped_product_waits(
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    changes: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    before = model.get_experts_implementation()
    ids = torch.arange(6)[None]
    with torch.inference_mode():
        expected = model(ids).logits
        with experts_that_do_not_wait(model, HERE, dtype):
            within = model.get_experts_implementation()
            actual = model(ids).logits
    assert (within != before) is changes
    if changes:
        assert set(within.values()) == {"batched_mm"}
    torch.testing.assert_close(actual, expected)
    assert model.get_experts_implementation() == before


def test_other_models_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    with experts_that_do_not_wait(torch.nn.Linear(1, 1), HERE, torch.bfloat16):
        pass
