"""Engines with weights in int8: what they say of a text, and what they refuse."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tests.workers.engine.cpu.test_decoder import OTHERS, engine_of, native_of, save
from tests.workers.engine.test_equality import DEMO
from workers.engine.config import EngineConfig
from workers.engine.cpu.library import why_no_int8
from workers.engine.engine import Engine
from workers.engine.exceptions import UnsupportedModel
from workers.engine.model import loader
from workers.engine.request import LogprobParams, Request, SamplingParams

needs_int8 = pytest.mark.skipif(why_no_int8() is not None, reason=str(why_no_int8()))

PASSAGE = Path(__file__).parent / "passage.txt"
WORSE_BY = 0.02
"""Nats per token beside float32; measured: 0.008 less of this passage, 0.007 to
0.010 more of two other texts."""


@pytest.fixture
def _all_cores() -> Iterator[None]:
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


def loss(dtype: str, prompt: tuple[int, ...]) -> float:
    """Nats per token of the prompt."""
    config = EngineConfig(device="cpu", dtype=dtype, max_num_seqs=4, kv_cache_bytes=2**28)
    engine = Engine.from_pretrained(DEMO, config)
    assert (native_of(engine) is not None) == (dtype == "int8")
    params = SamplingParams(max_tokens=1, temperature=0)
    wanted = (LogprobParams(logprob_start_len=0),)
    [done] = engine.generate([Request("r", (prompt,), params, logprobs=wanted)])
    scored = done.choices[0].prompt_logprobs
    assert scored is not None
    chosen = scored.chosen[1 : len(prompt)]
    assert len(chosen) == len(prompt) - 1
    return -float(chosen.mean())


@needs_int8
@pytest.mark.acceptance
class TestDemoModel:
    @pytest.mark.long
    @pytest.mark.usefixtures("_all_cores")
    def test_a_text_is_as_likely_as_in_float32(self) -> None:
        tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        prompt = tuple(tokenizer.encode(PASSAGE.read_text("utf-8")).ids)
        difference = loss("int8", prompt) - loss("float32", prompt)
        assert abs(difference) < WORSE_BY

    def test_it_still_knows_its_facts(self) -> None:
        config = EngineConfig(device="cpu", dtype="int8", max_num_seqs=4, kv_cache_bytes=2**28)
        tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        prompt = tuple(tokenizer.encode("The capital of France is").ids)
        params = SamplingParams(max_tokens=4, temperature=0)
        [done] = Engine.from_pretrained(DEMO, config).generate([Request("r", (prompt,), params)])
        assert "Paris" in tokenizer.decode(done.choices[0].token_ids)


@needs_int8
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_models_that_the_kernels_do_not_compute_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModel, match="no decoder of the form"):
        engine_of(save(tmp_path, name, OTHERS[name]), dtype="int8")


def test_machines_without_it_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "why_no_int8", lambda: "this CPU has no AVX512-VNNI")
    with pytest.raises(UnsupportedModel, match="int8 is not to be had: this CPU has no AVX512"):
        engine_of(save(tmp_path, "llama", {}), dtype="int8")
