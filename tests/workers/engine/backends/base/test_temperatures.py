"""Temperatures of rows that belong to several sequences."""

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention
from transformers.models.ministral3.modeling_ministral3 import Ministral3Attention

from workers.engine.backends.base.temperatures import (
    compute_temperatures,
    follow_positions,
    get_tuning,
    is_tuned,
    is_tuned_last,
    placing,
)


def attention_of(layer: int, **options: object) -> Llama4TextAttention:
    config = AutoConfig.for_model(
        "llama4_text", hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        num_hidden_layers=4, floor_scale=4, attn_scale=0.7, attn_implementation="eager", **options,
    )  # fmt: skip
    torch.manual_seed(0)
    attention = Llama4TextAttention(config, layer)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    return attention


def test_layers_without_rotary_positions_are_tuned() -> None:
    assert [is_tuned(attention_of(layer)) for layer in range(4)] == [False, False, False, True]
    assert not is_tuned(attention_of(3, attn_temperature_tuning=False))
    assert not is_tuned(torch.nn.Linear(2, 2))


def test_temperatures_rise_with_the_position() -> None:
    found = compute_temperatures(attention_of(3), torch.tensor([0, 2, 3, 6, 7]))
    expected = 1 + 0.7 * torch.tensor([1, 1, 2, 2, 3]).log()
    assert torch.allclose(found, expected)


def test_layers_that_are_given_positions_are_tuned_after_the_rotation() -> None:
    rope = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.7,
    }  # fmt: skip
    attention = Ministral3Attention(
        AutoConfig.for_model("ministral3", hidden_size=32, head_dim=16, rope_parameters=rope), 0
    )
    assert is_tuned_last(attention)
    assert not is_tuned(attention)
    assert get_tuning(attention) == (4, 0.7)
    found = compute_temperatures(attention, torch.tensor([0, 3, 4, 7, 8]))
    assert torch.allclose(found, 1 + 0.7 * torch.tensor([1, 1, 2, 2, 3]).log())
    attention.config.rope_parameters["llama_4_scaling_beta"] = None
    assert get_tuning(attention) is None
    assert get_tuning(attention_of(0)) is None
    assert get_tuning(attention_of(3)) == (4, 0.7)


@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4], [9, 3, 0, 41, 17]])
@torch.inference_mode()
def test_each_row_has_the_temperature_of_its_position(positions: list[int]) -> None:
    """Keys are scored by queries, so scores of rows show their factors."""
    attention, plain = attention_of(3), attention_of(3, attn_temperature_tuning=False)
    follow_positions(attention)
    follow_positions(attention)  # changes nothing
    assert len(attention._forward_pre_hooks) == 1
    rows, angles = torch.randn(1, 5, 32) * 0.05, torch.empty(0)

    def scores(of: Llama4TextAttention) -> torch.Tensor:
        weights = of(rows, angles, None)[1].log()
        return weights - weights[..., :1]

    with placing(torch.tensor(positions)):
        tuned = scores(attention)
    factors = compute_temperatures(attention, torch.tensor(positions))
    assert torch.allclose(tuned, scores(plain) * factors[:, None], atol=1e-4)
    in_order = compute_temperatures(attention, torch.arange(5))
    assert torch.allclose(scores(attention), scores(plain) * in_order[:, None], atol=1e-4)
