"""A model of each architecture, stored as llama.cpp stores it, is read as the same model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM

from tests.workers.engine.checkpoints.quantized.gguf.families import (
    FAMILIES,
    make_model,
    write_family,
)
from workers.engine.checkpoints.quantized.gguf.architectures import ARCHITECTURES
from workers.engine.checkpoints.quantized.gguf.file import GGUFFile
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.preparation import gguf_checkpoint

TOKENS = torch.arange(60)[None] * 5 % 8
WITH_HEADS = ("phi2", "gpt-oss", "qwen3next", "seed_oss")
"""Models with an output layer of their own."""
ELSEWHERE = {"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3"}
"""Those of test_file.py."""


def make(name: str) -> Any:
    return make_model(FAMILIES[name], tied=name not in WITH_HEADS)


def compare(made: Any, model: Any) -> None:
    """Both have the same weights and give the same tokens, beyond all windows."""
    assert type(made) is type(model)
    stored = model.state_dict()
    assert made.state_dict().keys() == stored.keys()
    for each, values in made.state_dict().items():
        torch.testing.assert_close(values, stored[each], rtol=1e-5, atol=1e-6, msg=each)
    with torch.no_grad():
        expected, actual = model(TOKENS).logits, made.eval()(TOKENS).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.represented_by("llama4", "gemma4", "gpt-oss", "qwen35")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_the_one_that_was_stored(tmp_path: Path, name: str) -> None:
    model = make(name)
    file = GGUFFile(write_family(tmp_path / "a.gguf", name, model))
    made = AutoModelForCausalLM.from_config(file.config())
    weights = {name: stored[...] for name, stored in file.weights().items()}
    missing, unexpected = made.load_state_dict(weights, strict=False)
    assert (set(missing) <= {"lm_head.weight"}, unexpected) == (True, [])
    compare(made, model)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_the_folder_holds_the_model_that_was_stored(tmp_path: Path, name: str) -> None:
    model = make(name)
    source = write_family(tmp_path / "a.gguf", name, model)
    gguf_checkpoint.convert(source, tmp_path / "made", "float32")
    compare(AutoModelForCausalLM.from_pretrained(tmp_path / "made"), model)
    if not name.startswith("falcon"):  # whose attention takes the engine's function only
        gguf_checkpoint.describe(source, tmp_path / "described", "float32", str(source))
        compare(read_model(tmp_path / "described", torch.float32, "eager"), model)


def test_blocks_that_predict_further_tokens_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("glm4moe")
    write = GGUFWriter.add_uint32

    def add(writer: GGUFWriter, key: str, value: int, **options: Any) -> None:
        write(writer, key, value + key.endswith(".block_count"), **options)

    def finish(writer: GGUFWriter, *args: Any) -> None:
        writer.add_uint32("glm4moe.nextn_predict_layers", 1)
        writer.add_tensor("blk.3.nextn.eh_proj.weight", torch.ones(32, 64).numpy())
        writer.add_tensor("blk.3.attn_norm.weight", torch.ones(32).numpy())
        header(writer, *args)

    header = GGUFWriter.write_header_to_file
    monkeypatch.setattr(GGUFWriter, "add_uint32", add)
    monkeypatch.setattr(GGUFWriter, "write_header_to_file", finish)
    file = GGUFFile(write_family(tmp_path / "a.gguf", "glm4moe", model))
    made = AutoModelForCausalLM.from_config(file.config())
    made.load_state_dict({name: stored[...] for name, stored in file.weights().items()}, False)
    compare(made, model)


def test_every_architecture_is_tried() -> None:
    assert {name.split()[0] for name in FAMILIES} | ELSEWHERE == ARCHITECTURES.keys()
