"""Steps that are launched before the tokens of the one before are known, by the GPU's code on the
CPU. ``whole/test_property.py`` has them among all other events."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.backends.cuda.test_runner import EagerGraphs, make_engine
from workers.engine.backends.cuda import runner as model_runner
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import InvalidLogits
from workers.engine.grammar.jump_rate import JumpRate
from workers.engine.launched_steps import PendingTokens
from workers.engine.sampling.logprobs import PendingScores
from workers.engine.sampling.sampler import Launched


def watch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each step that is launched ahead, from now on."""
    launched: list[int] = []
    prepare = engine.runner.prepare

    def watched(scheduled: Any, last_tokens: Tensor | None = None) -> Any:
        if last_tokens is not None:
            launched.append(len(last_tokens))
        return prepare(scheduled, last_tokens)

    monkeypatch.setattr(engine.runner, "prepare", watched)
    return launched


def ask(index: int, **params: Any) -> Request:
    sampling = SamplingParams(**{"max_tokens": 12, "seed": index, **params})
    return Request((greedy.prompt(1 + 5 * index, salt=index),), sampling, request_id=str(index))


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


@pytest.mark.represented_by("False")
@pytest.mark.parametrize("graphs", [False, True])
def test_the_same_is_said_as_step_by_step(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    engines = [make_engine(tiny_llama, async_scheduling=ahead) for ahead in (False, True)]
    for engine in engines:
        runner = engine.runner
        assert isinstance(runner, CudaRunner)
        if graphs:
            runner.graphs = runner.capture()
    expected = said(engines[0], MIXED)
    launched = watch(engines[1], monkeypatch)
    assert said(engines[1], MIXED) == expected
    assert len(launched) > 20
    assert engines[1].stats().kv_blocks_used == 0
    assert engines[1].stats().generated_tokens == sum(len(ids) for ids, _ in expected)


@pytest.mark.represented_by("neighbour1")
@pytest.mark.parametrize(
    "neighbour",
    [
        pytest.param({"top_p": 0.9}, marks=pytest.mark.long),
        {"top_k": 7, "top_p": 0.8},
        {"min_p": 0.05},
        pytest.param({"frequency_penalty": 0.5, "temperature": 0.0}, marks=pytest.mark.long),
        {"presence_penalty": 1.5, "repetition_penalty": 1.3},
        {"logit_bias": {9: 2.0}, "min_tokens": 5},
    ],
)
def test_rows_are_launched_ahead_whatever_they_filter_or_change(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, neighbour: dict[str, Any]
) -> None:
    requests = [ask(1, ignore_eos=True), ask(2, max_tokens=40, **neighbour)]
    expected = said(make_engine(tiny_llama, async_scheduling=False), requests)
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    assert said(engine, requests) == expected
    assert len(launched) > 5


def test_log_probabilities_come_with_tokens_that_were_launched_ahead(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(max_tokens=12, seed=3, top_k=9)
    requests = [
        Request(
            (greedy.prompt(5 + i),),
            sampling,
            logprobs=(LogprobParams(i, 0, (4, 7)),),
            request_id=str(i),
        )
        for i in range(3)
    ]
    expected = make_engine(tiny_llama, async_scheduling=False).generate(requests)
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    for ours, theirs in zip(engine.generate(requests), expected, strict=True):
        [here], [there] = ours.choices, theirs.choices
        assert here.token_ids == there.token_ids
        assert here.logprobs is not None
        assert there.logprobs is not None
        assert here.logprobs.chosen.tolist() == there.logprobs.chosen.tolist()
        assert here.logprobs.top.tolist() == there.logprobs.top.tolist()
        assert here.logprobs.top_ids.tolist() == there.logprobs.top_ids.tolist()
        assert here.logprobs.named.tolist() == there.logprobs.named.tolist()
    assert len(launched) > 5


def constrained(index: int, grammar: str, **params: Any) -> Request:
    return replace(ask(index, **params), grammar=f"start: {grammar}")


OPEN, FORCED = "/[a-z]{40}/", '/[a-c]/ " the quick brown fox " /[0-9]{2}/ "; the end" /[a-z ]{40}/'


@pytest.mark.represented_by("requests0")
@pytest.mark.parametrize(
    "requests",
    [
        [constrained(1, OPEN, temperature=0.0), ask(2, ignore_eos=True, temperature=0.0)],
        [constrained(1, OPEN), constrained(2, OPEN, top_k=9, max_tokens=20)],
        [ask(1, ignore_eos=True), ask(2, ignore_eos=True, dry_multiplier=0.8, temperature=0.0)],
        [constrained(1, OPEN, dry_multiplier=0.8), ask(2, ignore_eos=True, frequency_penalty=0.5)],
    ],
)
def test_rows_whose_tokens_depend_on_the_text_are_computed_ahead(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, requests: list[Request]
) -> None:
    expected = said(make_engine(tiny_llama, async_scheduling=False), requests)
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    assert said(engine, requests) == expected
    assert len(launched) > 5


@pytest.mark.represented_by("True-0")
@pytest.mark.parametrize("neighbours", stand_for_all([0, 3], [0, 1, 3]))
@pytest.mark.parametrize("is_low", [True, False])
def test_tokens_that_a_grammar_forces_meanwhile_take_the_place_of_sampled_ones(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, neighbours: int, is_low: bool
) -> None:
    monkeypatch.setattr(JumpRate, "is_low", is_low)
    others = [ask(i, ignore_eos=True, max_tokens=30) for i in range(neighbours)]
    requests = [constrained(9, FORCED, max_tokens=50, temperature=0.0), *others]
    expected = said(make_engine(tiny_llama, async_scheduling=False), requests)
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    assert said(engine, requests) == expected
    if is_low or not neighbours:  # a neighbour may run alone while the grammar is compiled
        assert bool(launched) is is_low
    assert engine.stats().generated_tokens == sum(len(ids) for ids, _ in expected)
    assert engine.stats().forced_tokens > 0


class Waits:
    """A custom processor, which may wait for the device."""

    def __init__(self, _params: Any, _context: Any) -> None: ...

    def __call__(self, token_ids: Any, logits: Tensor) -> None: ...


def test_custom_processors_and_reports_are_waited_for(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tiny_llama, logit_processors={"waits": f"{__name__}:Waits"})
    launched = watch(engine, monkeypatch)
    assert said(engine, [ask(1, ignore_eos=True, custom_logit_processor="waits")])
    assert not launched


def test_a_row_without_a_distribution_harms_nobody_else(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ask(i, ignore_eos=True, temperature=i % 2) for i in range(4)]
    expected = said(make_engine(tiny_llama, async_scheduling=False), requests)
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    forward = engine.runner.forward

    def spoiled(batch: Any) -> Tensor:
        logits = forward(batch)
        for row, seq in enumerate(batch.sampled):
            if engine.live.owner(seq).request.request_id == "1" and len(launched) >= 4:
                logits[row] = torch.nan
        return logits

    monkeypatch.setattr(engine.runner, "forward", spoiled)
    completions = engine.generate(requests)
    assert isinstance(completions[1].error, InvalidLogits)
    others = [completion.choices[0].token_ids for completion in completions if not completion.error]
    assert others == [ids for i, (ids, _) in enumerate(expected) if i != 1]


def test_an_abort_or_an_arrival_finds_a_step_under_way(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (ask(i, temperature=0.0, ignore_eos=True) for i in (1, 2, 3))
    expected = said(make_engine(tiny_llama, async_scheduling=False), [first, second, third])
    engine = make_engine(tiny_llama)
    launched = watch(engine, monkeypatch)
    engine.submit(first)
    engine.submit(second)
    tokens: dict[str, list[int]] = {"1": [], "2": [], "3": []}
    turns = 0
    while engine.live:
        launches = len(launched)
        for output in engine.turn():
            for delta in output.deltas:
                tokens[output.request_id] += delta.token_ids
        turns += 1
        if turns == 4:
            assert len(launched) > launches
            engine.abort("1")
            engine.submit(third)
    assert tokens["2"] == expected[1][0]
    assert tokens["3"] == expected[2][0]
    assert 0 < len(tokens["1"]) < 12
    engine.turn(wait=False)
    assert engine.stats().kv_blocks_used == 0


def test_a_request_of_a_higher_priority_takes_a_slot_within_a_few_steps(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tiny_llama, max_num_seqs=2)
    launched = watch(engine, monkeypatch)
    for index in (1, 2):
        engine.submit(ask(index, max_tokens=60, ignore_eos=True))
    for _ in range(4):
        engine.turn(wait=False)
    assert launched
    engine.submit(replace(ask(3, max_tokens=1), priority=1))
    outputs = [output for _ in range(4) for output in engine.turn(wait=False)]
    assert [output.request_id for output in outputs if output.finished] == ["3"]


def test_pending_tokens_say_which_rows_were_invalid() -> None:
    pending = PendingTokens.send(
        Launched(torch.tensor([5, 6, 7]), torch.tensor([True, False, True]), PendingScores())
    )
    assert pending.token_ids.tolist() == [5, 6, 7]
    output = pending.wait()
    assert output.invalid == [1]
    assert [output.token_ids[0], output.token_ids[2]] == [5, 7]
