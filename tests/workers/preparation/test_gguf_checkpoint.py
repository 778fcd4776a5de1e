"""The model that llama.cpp stored is the model that transformers loads."""

import json

import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from tests.acceptance.service import ROOT
from tests.workers.engine.checkpoints.quantized.gguf.small_files import (
    WORDS,
    tiny_model,
    write_gguf,
)
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig
from workers.preparation import gguf_checkpoint


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


TURN = "{{ messages }}<|im_start|>x<|im_end|>"


@pytest.mark.parametrize(
    ("ends", "template", "control", "expected"),
    [
        ({}, "{{ messages }}", [], {0}),
        ({"eot_token_id": 3}, "{{ messages }}", [], {0, 3}),
        ({"eot_token_id": 3, "eom_token_id": 4}, "{{ messages }}", [], {0, 3, 4}),
        ({"eot_token_id": 0}, "{{ messages }}", [], {0}),
        ({}, TURN, ["<|im_end|>"], {0, 7}),
        ({"eot_token_id": 7}, TURN, ["<|im_end|>"], {0, 7}),
        ({}, TURN, [], {0}),  # not one of its tokens
        ({}, "{{ messages }}", ["<|im_end|>"], {0}),  # not of its template
        ({}, "<|eot_id|><end_of_turn>", ["<|eot_id|>", "<end_of_turn>"], {0, 6, 7}),
        ({}, "x<|end|>", ["<|end|>", "<|return|>"], {0, 6}),
        ({}, "x<|end|>y<|return|>", ["<|end|>", "<|return|>"], {0, 7}),
    ],
)
@pytest.mark.parametrize("write", [gguf_checkpoint.convert, gguf_checkpoint.describe])
def test_every_end_token_of_the_file_and_its_template_counts(
    tmp_path, write, ends, template, control, expected
):
    source = write_gguf(
        tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"), ends=ends, template=template,
        control=control,
    )  # fmt: skip
    named = [str(source)] if write is gguf_checkpoint.describe else []
    write(source, tmp_path / "made", "float32", *named)
    assert served_ends(tmp_path / "made") == expected


def test_end_tokens_are_those_of_the_template_beside_the_file(tmp_path):
    source = write_gguf(
        tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"), control=["<|im_end|>"]
    )
    gguf_checkpoint.describe(source, tmp_path / "first", "float32", str(source))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tmp_path / "first" / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TURN)
    gguf_checkpoint.describe(source, tmp_path / "second", "float32", str(source))
    assert served_ends(tmp_path / "second") == {0, 7}


def served_ends(folder):
    """The end tokens that both tiers use."""
    model_files.load.cache_clear()
    web = set(model_files.load(ModelEntry("m", folder)).eos_token_ids)
    engine = load_model(folder, EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=2**20))
    assert engine.eos_token_ids == web
    return web


def test_an_unknown_architecture_is_named(tmp_path):
    writer = GGUFWriter(tmp_path / "a.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture 'mamba' are not read, only llama, arcee,"):
        gguf_checkpoint.convert(tmp_path / "a.gguf", tmp_path / "made", "float32")


@pytest.mark.parametrize("share", [0, 0.0001, 0.01, 0.9])
def test_a_file_that_is_cut_off_is_named(tmp_path, share):
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama", tied=True))
    whole = source.read_bytes()
    source.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"a\.gguf is not a whole GGUF file"):
        gguf_checkpoint.convert(source, tmp_path / "made", "float32")


def test_a_tensor_that_no_layer_takes_is_named(tmp_path):
    strange = {"strange.weight": torch.ones(4)}
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama"), tensors=strange)
    with pytest.raises(ValueError, match=r"no tensor of the model takes 'strange\.weight'"):
        gguf_checkpoint.convert(source, tmp_path / "made", "float32")


@pytest.mark.acceptance
def test_the_demo_model_is_bit_for_bit_the_one_that_was_measured():
    folder = ROOT / "var" / "models" / "smollm2-135m-instruct"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    weights, tokenizer = files["model.safetensors"], files["tokenizer.json"]
    assert weights["sha256"].startswith("7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7")
    assert tokenizer["sha256"].startswith("bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5f")
