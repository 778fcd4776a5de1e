"""Greedy tokens of the demo model against ``transformers.generate``: equal in float32, and in
bfloat16 none that rounding alone could not have chosen."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.driving import tokens
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.build import build_engine, compose_engine
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request

DEMO = Path(__file__).resolve().parents[4] / "var/models/smollm2-135m-instruct"
LENGTHS = (1, 17, 300, 2000)
NEW_TOKENS = 4
FLOAT32 = EngineConfig(device="cpu", dtype="float32", max_num_seqs=8, kv_cache_bytes=2**28)


@pytest.fixture
def _all_cores() -> Iterator[None]:
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model(DEMO, FLOAT32)


def text_prompt(folder: Path, length: int, start: int = 1) -> tuple[int, ...]:
    """Text that a language model continues without much doubt."""
    text = " ".join(f"{i} plus {i} is {2 * i}." for i in range(start, start + length))
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return tuple(ids[:length])


def ask(name: str, prompt: tuple[int, ...], max_tokens: int = NEW_TOKENS) -> Request:
    return Request((prompt,), SamplingParams(temperature=0, max_tokens=max_tokens), request_id=name)


@pytest.mark.long
@pytest.mark.acceptance
class TestDemoModel:
    @pytest.mark.usefixtures("_all_cores")
    def test_prompts_of_1_to_2000_tokens_mixed_alone_and_cached(self, demo: LoadedModel) -> None:
        engine = compose_engine(demo, FLOAT32)
        prompts = [text_prompt(DEMO, length, start) for start, length in enumerate(LENGTHS)]
        expected = [greedy.generate(DEMO, prompt, NEW_TOKENS) for prompt in prompts]
        requests = [ask(str(i), prompt) for i, prompt in enumerate(prompts)]
        assert tokens(engine.generate(requests)) == expected
        for request, alone in zip(requests, expected, strict=True):
            [completion] = engine.generate([request])
            assert tokens([completion]) == [alone]
            assert completion.usage is not None
            length = len(request.prompts[0])
            assert completion.usage.cached_tokens == (length - 1) // 16 * 16

    def test_after_preemption(self, demo: LoadedModel) -> None:
        block_bytes = demo.block_bytes(16)
        small = EngineConfig(
            device="cpu", dtype="float32", max_num_seqs=4, max_num_batched_tokens=32,
            max_model_len=64, kv_cache_bytes=8 * block_bytes, num_threads=1,
        )  # fmt: skip
        engine = compose_engine(demo, small)
        prompts = [text_prompt(DEMO, 30 + i, start=10 * i) for i in range(3)]
        requests = [ask(str(i), prompt, 20) for i, prompt in enumerate(prompts)]
        expected = [greedy.generate(DEMO, prompt, 20) for prompt in prompts]
        assert tokens(engine.generate(requests)) == expected
        assert engine.stats().preemptions > 0

    @pytest.mark.usefixtures("_all_cores")
    def test_bfloat16_is_within_a_tie(self) -> None:
        assert_ties(DEMO, [text_prompt(DEMO, n, start=n) for n in (2, 64, 200)])


def test_bfloat16_is_within_a_tie(tiny_llama: Path) -> None:
    assert_ties(tiny_llama, [greedy.prompt(n, salt=n) for n in (1, 17, 60, 200, 450)])


def assert_ties(path: Path, prompts: list[tuple[int, ...]]) -> None:
    """The engine's tokens in bfloat16, in one batch over chunk borders: each must be as likely as
    any other but for what rounding to bfloat16 does to the logits of transformers' own model."""
    config = EngineConfig(
        device="cpu", dtype="bfloat16", max_num_seqs=8, max_num_batched_tokens=128,
        kv_cache_bytes=2**26,
    )  # fmt: skip
    exact, rounded = (
        AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    engine = build_engine(path, config)
    said = tokens(engine.generate([ask(str(i), p, 12) for i, p in enumerate(prompts)]))
    likely = 0
    for prompt, output in zip(prompts, said, strict=True):
        logits = next_logits(exact, prompt, output)
        error = (next_logits(rounded, prompt, output) - logits).abs().amax(-1)
        gap = logits.amax(-1) - logits[torch.arange(len(output)), output]
        # Either of two logits may be off by the largest error, in both implementations.
        assert (gap <= 4 * error).all()
        likely += int((logits >= (logits.amax(-1) - 4 * error)[:, None]).sum())
    # The tolerance is narrow: few tokens of the vocabulary are within it.
    assert likely < 0.02 * sum(map(len, said)) * engine.vocab_size


@torch.inference_mode()
def next_logits(model: Any, prompt: tuple[int, ...], output: list[int]) -> torch.Tensor:
    """float32 logits [len(output), vocabulary] from which each of ``output`` would be chosen."""
    ids = torch.tensor([[*prompt, *output[:-1]]])
    logits: torch.Tensor = model(input_ids=ids).logits[0, len(prompt) - 1 :].float()
    return logits
