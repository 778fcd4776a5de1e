"""The benchmark of the GPU, on the CPU: its arithmetic, its models, and a run of a tiny one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine import gpu
from benchmarks.engine.gpu import Job, Limits, decode_limit, measure, measure_limits, prefill_flops
from benchmarks.engine.random_models import END, SHAPES, make_model, make_tokenizer

CPU = torch.device("cpu")


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 1
    assert "no NVIDIA GPU" in capsys.readouterr().out


def test_an_unknown_shape_is_named(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--shapes", "2b"])
    assert "unknown shapes: 2b; known: 135m, 1b, 8b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "billions"), [("135m", 0.1345), ("1b", 1.236), ("8b", 8.03), ("tiny", 0.0001)]
)
def test_shapes_have_the_parameters_they_are_named_for(name, billions):
    shape = SHAPES[name]
    counted = shape.layer_parameters + (1 if shape.tied else 2) * shape.head_parameters
    assert counted / 1e9 == pytest.approx(billions, rel=0.01, abs=2e-5)
    with torch.device("meta"):
        model = make_model(shape, torch.bfloat16, torch.device("meta"), "sdpa")
    norms = (2 * shape.layers + 1) * shape.hidden
    assert sum(p.numel() for p in model.parameters()) == counted + norms


def test_limits_are_of_bytes_and_of_products():
    shape = SHAPES["8b"]
    limits = Limits(bandwidth=3e12, flops=8e14)
    weights = 2 * (shape.layer_parameters + shape.head_parameters)
    assert decode_limit(shape, 0, 0, 2, limits) == pytest.approx(weights / 3e12)
    assert shape.kv_bytes(1, 2) == 131072  # 128 KiB a token, as published
    more = decode_limit(shape, 4, 1000, 2, limits) - decode_limit(shape, 0, 0, 2, limits)
    assert more == pytest.approx(4 * 1000 * 131072 / 3e12)
    assert prefill_flops(shape, 1) == pytest.approx(2 * shape.layer_parameters, rel=1e-3)
    measured = measure_limits(CPU, 2**16, 32)
    assert measured.bandwidth > 0
    assert measured.flops > 0


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_the_tokenizer_spells_every_text(text):
    tokenizer = TOKENIZER
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


TOKENIZER = make_tokenizer(12_000)


def test_the_tokenizer_is_as_large_as_asked():
    assert len(TOKENIZER) == 12_000
    assert len(make_tokenizer(400)) == 400
    assert TOKENIZER.eos_token_id == TOKENIZER.convert_tokens_to_ids(END) == 0


def test_a_tiny_model_runs_through_all_of_it(capsys):
    job = Job(prompt_tokens=8, new_tokens=8, prefill_tokens=64, repeats=1)
    result = measure("tiny", [1, 3], job, Limits(1e9, 1e9), CPU)
    assert [row.batch for row in result.decode] == [1, 3]
    assert all(row.engine > 0 and row.constrained > 0 for row in result.decode)
    assert all(row.limit_ms > 0 for row in result.decode)
    assert result.prefill_tokens_per_s > 0
    assert result.transformers_error == "needs a GPU"
    gpu.print_result(result)
    assert "did not run: needs a GPU" in capsys.readouterr().out


@pytest.mark.long
def test_the_comparison_finds_equal_tokens_equal_and_others_not(monkeypatch):
    assert gpu.unequal_tokens("cpu") == []
    plain = gpu.generate
    calls = []

    def spoiled(engine, prompts, *rest):
        calls.append(engine)
        completions = plain(engine, prompts, *rest)
        if len(calls) == 2:
            completions[3].choices[0].token_ids[5] ^= 1
        return completions

    monkeypatch.setattr(gpu, "generate", spoiled)
    assert gpu.unequal_tokens("cpu") == ["greedy, prompt of 70 tokens: differs at token 5"]


@pytest.mark.parametrize("page", [16, 256])
def test_the_8b_shape_fits_a_card_of_24_gb(page):
    shape, job = SHAPES["8b"], Job(128, 128, 8192, 3)
    tokens = gpu.count_cached_tokens([1, 8, 32, 64], job, page)
    assert tokens >= 64 * 256
    assert tokens >= 8 * 1025
    weights = 2 * (shape.layer_parameters + 2 * shape.head_parameters)
    assert weights + shape.kv_bytes(tokens, 2) < 21 * 2**30
