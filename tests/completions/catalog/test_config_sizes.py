"""Sizes that a config.json names in its family's way, or leaves to its family's defaults."""

import pytest

from completions.catalog.config_sizes import get_context_length, get_context_limit, get_vocab_size


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 10, "max_position_embeddings": 64}, (10, 64)),
        ({"model_type": "gpt2", "vocab_size": 10, "n_positions": 64}, (10, 64)),
        ({"model_type": "gpt2", "vocab_size": 10, "max_position_embeddings": 64}, (10, 64)),
        ({"model_type": "kimi_linear", "vocab_size": 10, "model_max_length": 64}, (10, 64)),
        ({"model_type": "falcon", "vocab_size": 10}, (10, 2048)),
        ({"model_type": "mamba", "vocab_size": 10}, (10, None)),
        ({"model_type": "xlnet", "vocab_size": 10, "max_position_embeddings": -1}, (10, None)),
        ({"model_type": "unheard-of"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_a_configuration_states_its_sizes(config, expected):
    assert (get_vocab_size(config), get_context_length(config)) == expected


@pytest.mark.parametrize("text", [{"model_type": "gemma3_text"}, {"hidden_size": 3840}])
def test_a_nested_configuration_may_leave_both_out(text):
    """Gemma 3 of 4 to 27 billion parameters does."""
    config = {"model_type": "gemma3", "text_config": text}
    assert (get_vocab_size(config), get_context_length(config)) == (262208, 131072)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({}, 64),
        ({"rope_parameters": {"rope_type": "default"}}, 64),
        ({"rope_parameters": YARN}, 128),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 256),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 128),
        ({"rope_parameters": {**YARN, "factor": 2.0}}, 64),
        ({"rope_parameters": {**YARN, "factor": 1.0}}, 64),
        ({"rope_parameters": {**YARN, "rope_type": "llama3"}}, 64),
        ({"rope_parameters": {"full_attention": YARN}}, 64),
    ],
)
def test_stretched_positions_allow_a_longer_context(rope, expected):
    config = {"model_type": "qwen2", "max_position_embeddings": 64, **rope}
    assert (get_context_length(config), get_context_limit(config)) == (64, expected)
    assert get_context_limit({"model_type": "mamba", **rope}) is None


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}},
    ],
)
def test_longrope_begins_with_the_length_of_its_short_factors(config):
    config = {"model_type": "phi3", "max_position_embeddings": 131072, **config}
    assert (get_context_length(config), get_context_limit(config)) == (4096, 131072)
