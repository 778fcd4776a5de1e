"""Steps that are launched before the tokens of the one before are known, by the GPU's code on the
CPU. ``test_engine_property`` has them among all other events."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.engine import greedy
from tests.workers.engine.cuda.test_model_runner import EagerGraphs, make_engine
from workers.engine.cuda import model_runner
from workers.engine.cuda.inputs import TABLE
from workers.engine.cuda.model_runner import CudaModelRunner
from workers.engine.engine import Engine
from workers.engine.exceptions import InvalidLogits
from workers.engine.flight import Flight, PendingTokens
from workers.engine.request import LogprobParams, Request, SamplingParams


def watch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each step that is launched ahead, from now on."""
    launched: list[int] = []
    launch: Callable[..., Flight | None] = engine._launch_ahead

    def watched(flight: Flight, lap: Any) -> Flight | None:
        ahead = launch(flight, lap)
        if ahead is not None:
            launched.append(len(ahead.batch.sampled))
        return ahead

    monkeypatch.setattr(engine, "_launch_ahead", watched)
    return launched


def ask(index: int, **params: Any) -> Request:
    sampling = SamplingParams(**{"max_tokens": 12, "seed": index, **params})
    return Request(str(index), (greedy.prompt(1 + 5 * index, salt=index),), sampling)


def said(engine: Engine, requests: list[Request]) -> list[tuple[list[int], str | None]]:
    choices = [completion.choices[0] for completion in engine.generate(requests)]
    return [(choice.token_ids, choice.finish_reason) for choice in choices]


MIXED = [
    ask(0, temperature=0.0),
    ask(1, temperature=0.7),
    ask(2, temperature=0.0, max_tokens=30, ignore_eos=True, min_tokens=30),
    ask(3, max_tokens=1),
    ask(4, temperature=1.5, min_tokens=9),
    ask(5, temperature=0.0, stop_token_ids=tuple(range(100, 160))),
    ask(6, temperature=0.9, max_tokens=25, ignore_eos=True),
]


@pytest.mark.parametrize("graphs", [False, True])
def test_the_same_is_said_as_step_by_step(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    engines = [make_engine(tiny_llama, async_scheduling=ahead) for ahead in (False, True)]
    for engine in engines:
        runner = engine._runner
        assert isinstance(runner, CudaModelRunner)
        if graphs:
            runner._graphs = runner._capture(6, TABLE + runner._block_tables.shape[1])
    expected = said(engines[0], MIXED)
    launched = watch(engines[1], monkeypatch)
    assert said(engines[1], MIXED) == expected
    assert len(launched) > 20
    assert engines[1].stats().kv_blocks_used == 0
    assert engines[1].stats().generated_tokens == sum(len(ids) for ids, _ in expected)


@pytest.mark.parametrize(
    "neighbour",
    [
        {"top_p": 0.9},
        {"frequency_penalty": 0.5},
        {"dry_multiplier": 0.8},
        {"logit_bias": {9: 2.0}},
    ],
)
def test_who_depends_on_the_text_is_waited_for(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, neighbour: dict[str, Any]
) -> None:
    requests = [ask(1, ignore_eos=True), ask(2, ignore_eos=True, **neighbour)]
    expected = said(make_engine(tiny_llama, async_scheduling=False), requests)
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    assert said(engine, requests) == expected
    assert not launched


def test_grammars_and_logprobs_are_waited_for(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=0.0)
    requests = [
        Request("grammar", (greedy.prompt(4),), sampling, "start: /[a-z]{40}/"),
        Request("logprobs", (greedy.prompt(5),), sampling, logprobs=(LogprobParams(2, 0, ()),)),
    ]
    for request in requests:
        engine = make_engine(tiny_llama)
        launched = watch(engine, monkeypatch)
        assert said(engine, [request])
        assert not launched


def test_a_row_without_a_distribution_harms_nobody_else(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ask(i, ignore_eos=True, temperature=i % 2) for i in range(4)]
    expected = said(make_engine(tiny_llama, async_scheduling=False), requests)
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    forward = engine._runner.forward

    def spoiled(batch: Any) -> Tensor:
        logits = forward(batch)
        for row, seq in enumerate(batch.sampled):
            if engine._live.owner(seq).request.request_id == "1" and len(launched) >= 4:
                logits[row] = torch.nan
        return logits

    monkeypatch.setattr(engine._runner, "forward", spoiled)
    completions = engine.generate(requests)
    assert isinstance(completions[1].error, InvalidLogits)
    others = [completion.choices[0].token_ids for completion in completions if not completion.error]
    assert others == [ids for i, (ids, _) in enumerate(expected) if i != 1]


def test_an_abort_or_an_arrival_finds_a_step_under_way(tiny_llama: Path) -> None:
    first, second, third = (ask(i, temperature=0.0, ignore_eos=True) for i in (1, 2, 3))
    expected = said(make_engine(tiny_llama, async_scheduling=False), [first, second, third])
    engine = make_engine(tiny_llama)
    engine.submit(first)
    engine.submit(second)
    tokens: dict[str, list[int]] = {"1": [], "2": [], "3": []}
    turns = 0
    while engine._live:
        engine._take_inbox(wait=False)
        for output in engine.step():
            for delta in output.deltas:
                tokens[output.request_id] += delta.token_ids
        turns += 1
        if turns == 4:
            assert engine._ahead is not None
            engine.abort("1")
            engine.submit(third)
    assert tokens["2"] == expected[1][0]
    assert tokens["3"] == expected[2][0]
    assert 0 < len(tokens["1"]) < 12
    engine._take_inbox(wait=False)
    engine.step()
    assert engine.stats().kv_blocks_used == 0


def test_pending_tokens_say_which_rows_were_invalid() -> None:
    pending = PendingTokens.send(torch.tensor([5, 6, 7]), torch.tensor([True, False, True]))
    assert pending.token_ids.tolist() == [5, 6, 7]
    output = pending.wait()
    assert output.invalid == [1]
    assert [output.token_ids[0], output.token_ids[2]] == [5, 7]
