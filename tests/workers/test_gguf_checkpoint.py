"""workers.gguf_checkpoint: the model that llama.cpp stored is the model that transformers loads."""

import json
from pathlib import Path

import pytest
import torch
from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.acceptance.service import ROOT
from workers import gguf_checkpoint

WORDS = ["<|endoftext|>", "<|im_start|>", "a", "b", "c", "ab", "abc", "Ġ"]
CONTROL, NORMAL = 3, 1
LAYERS = 2


def tiny_model(architecture: str, tied: bool) -> torch.nn.Module:
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        rms_norm_eps=1e-5,
        rope_theta=5000.0,
    )
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # norms and biases start as ones and zeros
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def interleaved(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (half, pair) of each head as rows (pair, half), as llama.cpp stores those of Llama."""
    return values.view(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write_gguf(path: Path, architecture: str, model: torch.nn.Module, more: tuple = ()) -> Path:
    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([CONTROL, CONTROL] + [NORMAL] * (len(WORDS) - 2))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            values = interleaved(values, heads[part])
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None
        writer.add_tensor(stored, values.numpy())
    for name in more:
        writer.add_tensor(name, torch.ones(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_model_is_the_one_that_was_stored(tmp_path, architecture, tied):
    model = tiny_model(architecture, tied)
    source = write_gguf(tmp_path / "tiny.gguf", architecture, model)
    gguf_checkpoint.convert(source, tmp_path / "made", "float32")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert type(made) is type(model)
    assert made.dtype == torch.float32
    assert made.state_dict().keys() == model.state_dict().keys()
    for name, values in model.state_dict().items():
        assert torch.equal(made.state_dict()[name], values), name
    tokens = torch.arange(len(WORDS))[None]
    assert torch.allclose(made(tokens).logits, model(tokens).logits, atol=1e-6)


def test_weights_are_rounded_to_the_dtype(tmp_path):
    model = tiny_model("llama", tied=True)
    source = write_gguf(tmp_path / "tiny.gguf", "llama", model)
    gguf_checkpoint.convert(source, tmp_path / "made", "bfloat16")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype="auto")
    assert made.dtype == torch.bfloat16
    for name, values in model.state_dict().items():
        assert torch.equal(made.state_dict()[name], values.bfloat16()), name


def test_the_tokenizer_and_its_template_come_along(tmp_path):
    source = write_gguf(tmp_path / "tiny.gguf", "llama", tiny_model("llama", tied=True))
    gguf_checkpoint.convert(source, tmp_path / "made", "float32")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer.encode("<|im_start|>abcab") == [1, 6, 5]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|endoftext|>")
    assert tokenizer.chat_template == "{{ messages }}"


def test_an_unknown_architecture_is_named(tmp_path):
    writer = GGUFWriter(tmp_path / "a.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="'mamba' is not one of llama, qwen2, qwen3"):
        gguf_checkpoint.convert(tmp_path / "a.gguf", tmp_path / "made", "float32")


def test_a_tensor_that_no_layer_takes_is_named(tmp_path):
    model = tiny_model("llama", tied=True)
    source = write_gguf(tmp_path / "a.gguf", "llama", model, more=("rope_freqs.weight",))
    with pytest.raises(ValueError, match=r"no tensor of the model takes 'rope_freqs\.weight'"):
        gguf_checkpoint.convert(source, tmp_path / "made", "float32")


@pytest.mark.acceptance
def test_the_demo_model_is_bit_for_bit_the_one_that_was_measured():
    folder = ROOT / "var" / "models" / "smollm2-135m-instruct"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    weights, tokenizer = files["model.safetensors"], files["tokenizer.json"]
    assert weights["sha256"].startswith("7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7")
    assert tokenizer["sha256"].startswith("bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5f")
