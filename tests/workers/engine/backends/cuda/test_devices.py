"""The whole engine with its model on another device than the CPU: no operation mixes the two."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.adapters import save_adapter
from tests.workers.engine.backends.cuda.test_runner import EagerGraphs
from tests.workers.engine.backends.cuda.without_gpu.pretend_device import (
    DEVICE,
    PretendDevice,
    move,
    pretended,
)
from workers.engine.backends.cuda import runner as model_runner
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.build import compose_engine
from workers.engine.checkpoints.loader import wrap_model
from workers.engine.config import EngineConfig
from workers.engine.core.output import ChoiceDelta, Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.launched_steps import PendingTokens

CONFIG = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "block_size": 4, "kv_cache_bytes": 2**22}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"seed": 1},
    "filtered": {"seed": 2, "top_p": 0.9, "top_k": 40},
    "min-p": {"seed": 3, "min_p": 0.02},
    "adjusted": {
        "seed": 4,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {9: 3.0},
        "min_tokens": 4,
        "stop_token_ids": (9, 11),
    },
    "constrained": {"seed": 5, "grammar": "start: /[a-z]{4,12}/"},
    "jumping": {"temperature": 0.0, "grammar": 'start: /[0-9]/ " the quick brown " /[a-z]{3}/'},
    "repeating": {"seed": 8, "dry_multiplier": 2.0, "dry_allowed_length": 1},
    "hidden": {"temperature": 0.0, "return_hidden_states": True},
    "scored": {"seed": 6, "logprobs": (LogprobParams(3, 0, (7, 8)),)},
    "adapted": {"temperature": 0.0, "adapter": "a"},
}


WAITING = {"constrained", "jumping", "repeating", "hidden"}
"""Kinds whose next step needs their tokens here."""


class Inline:
    """An executor that runs in the caller's thread, where the device is."""

    def submit(self, run: Any, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(run(*args))
        return future

    def shutdown(self, **_: Any) -> None: ...


def ask(kind: str, length: int = 9) -> Request:
    fields = dict(KINDS[kind])
    outer = {
        name: fields.pop(name)
        for name in ("grammar", "return_hidden_states", "adapter", "logprobs")
        if name in fields
    }
    if "adapter" in outer:
        outer["adapters"] = (outer.pop("adapter"),)
    sampling = SamplingParams(**{"max_tokens": 6, **fields})
    return Request((greedy.prompt(length),), sampling, **outer, request_id=kind)


@dataclass
class Pair:
    """The GPU's code twice: with the model on the CPU, and on the pretended device."""

    here: Engine
    there: Engine

    def generate(self, requests: list[Request]) -> tuple[list[Completion], list[Completion]]:
        here = self.here.generate(requests)
        with pretended():
            return here, self.there.generate(requests)


def make_engine(path: Path, adapter: Path | None, dtype: str, device: torch.device) -> Engine:
    adapters = {} if adapter is None else {"a": adapter}
    config = EngineConfig(**CONFIG, device="cpu", dtype=dtype, adapters=adapters)
    backend = CudaBackend(device)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation=backend.attention
    )
    if device == DEVICE:
        move(model)
        object.__setattr__(config, "device", str(device))  # no device that a user could name
    engine = compose_engine(
        wrap_model(model, AutoTokenizer.from_pretrained(path), backend, config), config
    )
    engine.structured_output.filler = Inline()  # type: ignore[assignment]
    # How soon a grammar is compiled decides who shares a step, and so the last bits of floats.
    engine.structured_output.compiler = Inline()  # type: ignore[assignment]
    return engine


@pytest.fixture(scope="module")
def make_new_pair(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Pair]:
    adapter = save_adapter(tmp_path_factory.mktemp("adapter"), tiny_llama)

    def make(dtype: str) -> Pair:
        here = make_engine(tiny_llama, adapter, dtype, torch.device("cpu"))
        with pretended():
            return Pair(here, make_engine(tiny_llama, adapter, dtype, DEVICE))

    return make


@pytest.fixture(scope="module")
def make_pair(make_new_pair: Callable[[str], Pair]) -> Callable[[str], Pair]:
    """Make each pair once for all tests: earlier ones leave blocks in its prefix cache."""
    return cache(make_new_pair)


def plain(choice: ChoiceDelta) -> dict[str, Any]:
    """All of a choice, its arrays as lists."""
    return json.loads(json.dumps(asdict(choice), default=lambda array: array.tolist()))  # type: ignore[no-any-return]


def scores(choice: dict[str, Any]) -> list[float]:
    """Take the log probabilities out of a plain choice. The ids that have them stay."""
    found = [choice[name] for name in ("logprobs", "prompt_logprobs") if choice.get(name)]
    chosen = [number for each in found for number in each.pop("chosen")]
    rows = [row for each in found for name in ("top", "named") for row in each.pop(name)]
    return [*chosen, *(number for row in rows for number in row)]


@pytest.mark.represented_by("drawn", "scored")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_request_alone(make_pair: Callable[[str], Pair], kind: str) -> None:
    [here], [there] = make_pair("float32").generate([ask(kind)])
    assert there.error is None
    assert list(map(plain, here.choices)) == list(map(plain, there.choices))


@pytest.mark.represented_by("float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_kinds_in_one_batch_over_chunk_borders(
    make_pair: Callable[[str], Pair], dtype: str
) -> None:
    requests = [ask(kind, 5 + 7 * i) for i, kind in enumerate(KINDS)]
    here, there = make_pair(dtype).generate(requests)
    assert [c.error for c in there] == [None] * len(requests)
    for ours, theirs in zip(here, there, strict=True):
        pairs = zip(map(plain, ours.choices), map(plain, theirs.choices), strict=True)
        for our, their in pairs:
            # On a CPU without bfloat16 instructions, a row's bits depend on how many share a step.
            noise = 0.05 if dtype == "bfloat16" else 0.0
            our_scores, their_scores = scores(our), scores(their)
            assert our == their
            assert our_scores == pytest.approx(their_scores, rel=0, abs=noise, nan_ok=True)


@pytest.mark.wide
def test_a_step_is_launched_ahead_without_waiting(
    make_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_pair("bfloat16").there
    prepare, send = engine.runner.prepare, PendingTokens.send
    before: list[tuple[int, int]] = []
    after: list[tuple[int, int]] = []

    def prepared(scheduled: Any, last_tokens: Any = None) -> Any:
        if last_tokens is not None:
            before.append((PretendDevice.num_reads, PretendDevice.num_uploads))
        return prepare(scheduled, last_tokens)

    def sent(*args: Any) -> PendingTokens:
        tokens = send(*args)
        if len(after) < len(before):
            after.append((PretendDevice.num_reads, PretendDevice.num_uploads))
        return tokens

    monkeypatch.setattr(engine.runner, "prepare", prepared)
    monkeypatch.setattr(PendingTokens, "send", sent)
    with pretended():
        engine.generate([ask(kind) for kind in KINDS if kind not in WAITING])
    assert len(before) > 3
    assert after == before


def test_a_step_reads_nothing_back_before_it_samples(
    make_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_pair("bfloat16").there
    reads: list[int] = []
    waits: list[tuple[int, int]] = []

    def watch(name: str) -> None:
        choose = getattr(engine.sampler, name)

        def watched(*args: Any, **options: Any) -> Any:
            reads.append(PretendDevice.num_reads)
            uploads = PretendDevice.num_uploads
            result = choose(*args, **options)
            if name == "launch":
                waits.append(
                    (PretendDevice.num_reads - reads[-1], PretendDevice.num_uploads - uploads)
                )
            PretendDevice.num_reads = 0
            return result

        monkeypatch.setattr(engine.sampler, name, watched)

    watch("sample")
    watch("launch")
    kinds = ("greedy", "drawn", "constrained", "repeating", "adapted")
    with pretended():
        engine.generate([ask(kind) for kind in kinds])
    assert reads
    assert not any(reads)
    assert len(waits) > 3
    assert set(waits) == {(0, 0)}


def test_the_pretended_device_refuses_what_a_device_refuses() -> None:
    with pretended():
        here, there = torch.ones(3), torch.ones(3).to(DEVICE)
        for mixed in (lambda: here + there, lambda: torch.where(here > 0, there, here)):
            with pytest.raises(RuntimeError, match="on the CPU and on a device"):
                mixed()
        with pytest.raises(RuntimeError):
            there.numpy()
        uploads = PretendDevice.num_uploads
        there.copy_(here)
        there.copy_(here, non_blocking=True)
        here.to(DEVICE, non_blocking=True)
        assert PretendDevice.num_uploads == uploads + 1
        there[torch.tensor([0, 1])] = 5.0
        assert (there + 1).cpu().tolist() == [6.0, 6.0, 2.0]
        assert there.device == DEVICE


@pytest.mark.wide
def test_a_graph_reads_its_tables_on_the_device(
    make_new_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    pair = make_new_pair("float32")
    runner = pair.there.runner
    assert isinstance(runner, CudaRunner)
    kinds = [kind for kind in KINDS if kind not in ("scored", "repeating")]
    requests = [ask(kind, 5 + 7 * i) for i, kind in enumerate(kinds)]
    with pretended(), torch.inference_mode():
        graphs = runner.capture()
    monkeypatch.setattr(runner, "graphs", graphs)
    here, there = pair.generate(requests)
    for ours, theirs in zip(here, there, strict=True):
        assert [c.token_ids for c in ours.choices] == [c.token_ids for c in theirs.choices]
    assert isinstance(graphs, EagerGraphs)
    assert len(set(graphs.replayed)) > 1
