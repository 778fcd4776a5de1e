"""The benchmark of contexts, over a tiny model, and the limits that it compares with."""

import re
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from benchmarks.engine import contexts, limits
from benchmarks.engine.contexts import Step
from benchmarks.engine.limits import Limits
from tests.workers.engine import tiny_models
from workers.engine.backends.cpu.layers import library
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig

needs_kernels = pytest.mark.skipif(library.load_library() is None, reason="needs the C kernels")


def test_a_step_counts_what_its_tokens_see() -> None:
    step = Step(sequences=2, rows=3, position=10)
    assert step.tokens == 6
    assert step.pairs == 2 * (11 + 12 + 13)
    assert step.stored == 2 * 13


def test_the_limit_is_the_slower_of_products_and_memory() -> None:
    machine = Limits(products=100.0, memory=10.0, instructions="float32")
    assert (machine.seconds(200, 10), machine.bound(200, 10)) == (2, "products")
    assert (machine.seconds(200, 40), machine.bound(200, 40)) == (4, "memory")


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({*library.AVX512.needed, *library.AVX512.faster, *library.AMX}, "tiles"),
        ({*library.AVX512.needed, *library.AVX512.faster}, "pairs of bfloat16"),
        (set(library.AVX512.needed), "float32"),
        (set(library.AVX2.needed), "float32"),
        ({"asimd", "asimddp", "bf16"}, "pairs of bfloat16"),
        ({"asimd"}, "float32"),
    ],
)
def test_instructions_are_those_that_the_kernels_are_compiled_for(
    features: set[str], expected: str
) -> None:
    assert limits.name_instructions(frozenset(features)) == expected


@pytest.mark.wide
@needs_kernels
def test_limits_are_measured() -> None:
    measured = limits.measure_limits(threads=1, repeats=1, size=2**22)
    assert measured.products > measured.memory / 64 > 0


@needs_kernels
def test_packed_weights_are_counted_too(tmp_path: Path) -> None:
    folder = tiny_models.save_model(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    expected = sum(x.numel() for x in plain.parameters() if x.dim() == 2)
    expected -= plain.get_input_embeddings().weight.numel()
    if plain.config.tie_word_embeddings:
        expected += plain.get_output_embeddings().weight.numel()
    loaded = load_model(folder, EngineConfig(device="cpu", dtype="bfloat16"))
    assert loaded.paged.native is not None
    assert contexts.count_weights(loaded.paged.model) == expected


@pytest.mark.wide
@needs_kernels
def test_it_prints_prompts_by_position_and_decoding_by_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_models.save_model(tmp_path)
    sizes = ["--positions", "0,20", "--chunk", "8", "--contexts", "16,33", "--batches", "1,3"]
    options = ["contexts", "--model", str(folder), "--threads", "1", "--repeats", "1", *sizes]
    monkeypatch.setattr(sys, "argv", options)
    monkeypatch.setattr(contexts, "measure_limits", lambda _: Limits(1e15, 1e15, "float32"))
    contexts.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "products by float32 reach 1000000 Gflop/s, memory 1000000.0 GB/s"
    steps = [re.split(r"\s{2,}", line.strip())[:2] for line in lines]
    assert steps == [
        ["tokens", "after"], ["1 x 8", "0"], ["1 x 8", "20"],
        ["tokens", "after"], ["1 x 1", "16"], ["3 x 1", "16"], ["1 x 1", "33"], ["3 x 1", "33"],
    ]  # fmt: skip
    rates = [float(re.split(r"\s{2,}", line.strip())[2]) for line in lines if " x " in line]
    assert min(rates) > 0
