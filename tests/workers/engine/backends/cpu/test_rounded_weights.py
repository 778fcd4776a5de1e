"""Engines with weights in int8 or int4: what they say of a text, and what they refuse."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from tokenizers import Tokenizer

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.backends.cpu.shapes import OTHERS, SHAPES
from tests.workers.engine.backends.cpu.test_decoder import engine_of, native_of, save
from tests.workers.engine.tiny_models import LLAMA, save_model
from tests.workers.engine.whole.test_equality import DEMO
from workers.engine.backends.cpu.layers.library import why_no_kernels
from workers.engine.backends.cpu.recognition import layers
from workers.engine.build import build_engine
from workers.engine.checkpoints import loader
from workers.engine.checkpoints.parity.own_attention import OwnAttention
from workers.engine.checkpoints.parity.parity_check import ParityCheck
from workers.engine.config import ROUNDED_DTYPES, EngineConfig
from workers.engine.core.request import Request
from workers.engine.exceptions import UnsupportedModel

needs_kernels = pytest.mark.skipif(why_no_kernels() is not None, reason=str(why_no_kernels()))

PASSAGE = Path(__file__).parent / "passage.txt"
WORSE_BY = {"int8": 0.02, "int4": 0.03}
"""Nats per token beside float32; measured for int8: 0.008 less of this passage, 0.007 to 0.010
more of two other texts. For int4: 0.021 more of this passage on an AMD EPYC with VNNI and without
AMX, less on an Intel Xeon with AMX."""
HYBRIDS = ("bamba", "falcon_h1", "granitemoehybrid with states", "lfm2", "nemotron_h")
HYBRIDS_WORSE_BY = {"int8": 0.02, "int4": 0.2}
"""Of texts drawn from these random models. Measured: at most 0.007 and 0.13, as of a random Llama
(0.001 and 0.13). A first mixer whose output is zero costs 0.06 to 1.9."""

rounded = pytest.mark.parametrize("dtype", ROUNDED_DTYPES)


@pytest.fixture
def _all_cores() -> Iterator[None]:
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


def loss(path: Path, dtype: str, texts: Sequence[tuple[int, ...]]) -> float:
    """Nats per token of the texts."""
    config = EngineConfig(device="cpu", dtype=dtype, max_num_seqs=4, kv_cache_bytes=2**28)
    engine = build_engine(path, config)
    assert (native_of(engine) is not None) == (dtype in ROUNDED_DTYPES)
    params = SamplingParams(max_tokens=1, temperature=0)
    wanted = (LogprobParams(logprob_start_len=0),)
    requests = [
        Request((text,), params, logprobs=wanted, request_id=str(i)) for i, text in enumerate(texts)
    ]
    chosen: list[float] = []
    for text, done in zip(texts, engine.generate(requests), strict=True):
        scored = done.choices[0].prompt_logprobs
        assert scored is not None
        chosen.extend(scored.chosen[1 : len(text)].tolist())
    assert len(chosen) == sum(len(text) - 1 for text in texts)
    return -fmean(chosen)


def draw_texts(path: Path) -> list[tuple[int, ...]]:
    """Texts of a model in float32, which they are likely to."""
    config = EngineConfig(device="cpu", dtype="float32", max_num_seqs=16, kv_cache_bytes=2**28)
    prompts = [greedy.prompt(3, salt) for salt in range(16)]
    requests = [
        Request(
            (prompt,),
            SamplingParams(max_tokens=64, temperature=1, seed=i, ignore_eos=True),
            request_id=str(i),
        )
        for i, prompt in enumerate(prompts)
    ]
    completions = build_engine(path, config).generate(requests)
    return [
        (*prompt, *completion.choices[0].token_ids)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


@needs_kernels
@pytest.mark.acceptance
@pytest.mark.long
class TestDemoModel:
    @rounded
    @pytest.mark.usefixtures("_all_cores")
    def test_a_text_is_as_likely_as_in_float32(self, dtype: str) -> None:
        tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        prompt = tuple(tokenizer.encode(PASSAGE.read_text("utf-8")).ids)
        difference = loss(DEMO, dtype, [prompt]) - loss(DEMO, "float32", [prompt])
        assert abs(difference) < WORSE_BY[dtype]

    @rounded
    def test_it_still_knows_its_facts(self, dtype: str) -> None:
        config = EngineConfig(device="cpu", dtype=dtype, max_num_seqs=4, kv_cache_bytes=2**28)
        tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        prompt = tuple(tokenizer.encode("The capital of France is").ids)
        params = SamplingParams(max_tokens=4, temperature=0)
        [done] = build_engine(DEMO, config).generate([Request((prompt,), params, request_id="r")])
        assert "Paris" in tokenizer.decode(done.choices[0].token_ids)


@needs_kernels
@rounded
@pytest.mark.long
@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.usefixtures("_all_cores")
def test_texts_of_a_hybrid_are_as_likely_as_in_float32(
    tmp_path: Path, name: str, dtype: str
) -> None:
    path = save(tmp_path, name, {**SHAPES[name], "initializer_range": 0.1})
    texts = draw_texts(path)
    difference = loss(path, dtype, texts) - loss(path, "float32", texts)
    assert abs(difference) < HYBRIDS_WORSE_BY[dtype]


@pytest.mark.represented_by("olmoe-int8")
@needs_kernels
@rounded
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_models_that_the_kernels_do_not_compute_are_refused(
    tmp_path: Path, name: str, dtype: str
) -> None:
    with pytest.raises(UnsupportedModel, match="needs the C forward, "):
        engine_of(save(tmp_path, name, OTHERS[name]), dtype=dtype)


@rounded
def test_machines_without_it_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(loader, "why_no_kernels", lambda: "this CPU has no vectors")
    with pytest.raises(UnsupportedModel, match=f"{dtype} needs C kernels: this CPU"):
        engine_of(save(tmp_path, "llama", {}), dtype=dtype)


SHAPE = {
    **LLAMA, "hidden_size": 128, "intermediate_size": 128, "head_dim": 64, "vocab_size": 416,
}  # fmt: skip


@needs_kernels
@rounded
def test_logits_that_are_all_higher_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Forwards may differ by far more than rounding explains in logits, but not in what they make
    of a text."""
    run = OwnAttention._run
    monkeypatch.setattr(OwnAttention, "_run", lambda *args: run(*args) + 20)
    assert engine_of(save_model(tmp_path, SHAPE), dtype=dtype).forward == "c"


@needs_kernels
@rounded
def test_a_forward_that_loses_much_of_a_text_is_refused_with_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    rule = layers._whole_rule
    monkeypatch.setattr(ParityCheck, "check_native", lambda self: None)
    monkeypatch.setattr(layers, "_whole_rule", lambda *args: replace(rule(*args), scale=2.0))
    with pytest.raises(UnsupportedModel) as refused:
        engine_of(save_model(tmp_path, SHAPE), dtype=dtype)
    assert re.fullmatch(
        rf"dtype {dtype} needs the C forward, but LlamaForCausalLM in C loses [0-9.]+ nats per "
        rf"token of a text against its own attention in {dtype}, more than the 0.1 that rounding "
        r'explains: set dtype = "bfloat16"',
        str(refused.value),
    )
