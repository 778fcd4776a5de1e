"""Several processes compute what one does."""

import re

import pytest

from completions.contract.job_request import LogprobParams, Task
from completions.contract.sampling import SamplingParams
from tests.workers.engine.backends.parallel.families import FAMILIES
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.backends.parallel import followers, leader
from workers.engine.checkpoints import loader
from workers.engine.core.request import Request
from workers.engine.engine import Engine

pytestmark = pytest.mark.long

JSON = '%llguidance {}\nstart: "[" NUMBER ("," NUMBER){2,} "]"\nNUMBER: /[0-9]+/\n'


def requests():
    """Prompts of unequal lengths, longer than a step and than a window; drawn and greedy."""
    drawn = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2}
    return [
        Request(
            request_id=str(i),
            prompts=((1 + i, 5, 9, 30) * (1 + 3 * i),),
            sampling=SamplingParams(
                max_tokens=40, seed=i, ignore_eos=True, **({} if i % 2 else drawn)
            ),
        )
        for i in range(4)
    ]


def scored(engine: Engine):
    """The same prompts with their log probabilities, and one under a grammar."""
    prompts = [
        Request(
            request_id=f"scored-{each.request_id}",
            prompts=each.prompts,
            sampling=SamplingParams(max_tokens=4, seed=1, ignore_eos=True),
            logprobs=(LogprobParams(top_logprobs_num=2, logprob_start_len=0),),
        )
        for each in requests()
    ]
    constrained = Request(
        request_id="constrained",
        prompts=((1, 2, 3),),
        sampling=SamplingParams(max_tokens=60, seed=3),
        grammar=JSON,
    )
    return engine.generate([*prompts, constrained])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_generate_the_tokens_of_one_process(make_ranks, family, ranks):
    one, several = make_ranks(family, 1, speculation=False), make_ranks(family, ranks)
    expected, found = (engine.generate(requests()) for engine in (one, several))
    for own, theirs in zip(expected, found, strict=True):
        assert theirs.error is None
        assert theirs.choices[0].token_ids == own.choices[0].token_ids
    assert several.forward == "torch"


def test_prompts_are_scored_and_grammars_followed_as_in_one_process(make_ranks):
    one, several = make_ranks("llama", 1, speculation=False), make_ranks("llama", 2)
    for own, theirs in zip(scored(one), scored(several), strict=True):
        assert theirs.choices[0].text == own.choices[0].text
        if own.choices[0].prompt_logprobs is not None:
            assert theirs.choices[0].prompt_logprobs.chosen[1:] == pytest.approx(
                own.choices[0].prompt_logprobs.chosen[1:], abs=1e-4
            )


@pytest.mark.parametrize("family", ["llama", "tied"])
def test_choices_are_closed_and_continuations_scored_as_in_one_process(make_ranks, family):
    """The vocabulary of one of them divides unevenly; both have more rows than tokens."""
    closed = [
        Request(
            request_id=f"closed-{seed}",
            prompts=((1, 2, 3),),
            sampling=SamplingParams(max_tokens=12, seed=seed, n=2),
            grammar='start: "[" NUMBER ("," NUMBER){2,} "]"\nNUMBER: /[0-9]+/',
            close=True,
        )
        for seed in range(3)
    ]
    given = Request(
        request_id="given",
        prompts=((1, 5, 9, 30) * 8,),
        sampling=SamplingParams(max_tokens=0),
        logprobs=(LogprobParams(2),),
        task=Task.SCORE,
        continuations=(((4, 5), (4, 9, 11), (7,)),),
    )
    one, several = make_ranks(family, 1, speculation=False), make_ranks(family, 2)
    for own, theirs in zip(*(e.generate([*closed, given]) for e in (one, several)), strict=True):
        assert own.error is theirs.error is None
        for ours, other in zip(own.choices, theirs.choices, strict=True):
            assert other.token_ids == ours.token_ids
            assert other.limit_ending == ours.limit_ending
            if ours.logprobs is not None:
                assert other.logprobs.chosen == pytest.approx(ours.logprobs.chosen, abs=1e-4)
            else:
                assert re.fullmatch(r"\[[0-9]+(,[0-9]+){2,}\]", ours.text)


def test_hidden_states_and_experts_are_recorded_as_in_one_process(make_ranks):
    """Of eight experts, each rank has four whole ones."""
    ask = Request(
        request_id="recorded",
        prompts=((1, 5, 9, 30) * 8,),
        sampling=SamplingParams(max_tokens=6, temperature=0, ignore_eos=True),
        return_hidden_states=True,
        return_routed_experts=True,
    )
    one, several = make_ranks("qwen3_moe", 1), make_ranks("qwen3_moe", 2)
    (own,), (theirs,) = one.generate([ask]), several.generate([ask])
    assert theirs.choices[0].token_ids == own.choices[0].token_ids
    assert theirs.choices[0].hidden_states == pytest.approx(own.choices[0].hidden_states, abs=1e-3)
    assert theirs.choices[0].routed_experts.tolist() == own.choices[0].routed_experts.tolist()


def test_ranks_agree_on_the_smallest_cache(make_ranks):
    """Of three KV heads, rank 0 has one and rank 1 two: rank 1 decides."""
    one = make_ranks("uneven", 1, kv_cache_bytes=2**16)
    several = make_ranks("uneven", 2, kv_cache_bytes=2**16)
    block = 2 * 16 * (16 + 16) * 4  # layers, tokens, key and value, float32; of one KV head
    assert one.stats().kv_blocks_total == 2**16 // (3 * block)
    assert several.stats().kv_blocks_total == 2**16 // (2 * block)
    assert several.generate(requests())[3].error is None  # preempting each other


def test_steps_of_a_gpu_are_planned_and_launched_ahead_on_all_ranks(make_ranks, monkeypatch):
    """The GPU's runner, on the CPU: its last tokens reach the followers without the host's help."""
    expected = make_ranks("llama", 1, speculation=False).generate(requests())
    monkeypatch.setattr(loader, "choose_backend", CudaBackend)
    monkeypatch.setattr(
        followers, "_FOLLOWER", "tests.workers.engine.backends.parallel.gpu_follower"
    )
    plans = []
    send = leader.StepPlan.to_bytes
    monkeypatch.setattr(
        leader.StepPlan, "to_bytes", lambda plan: [plans.append(plan), send(plan)][1]
    )
    engine = make_ranks("llama", 2)
    assert isinstance(engine.runner._own, CudaRunner)
    found = engine.generate(requests())
    assert [c.choices[0].token_ids for c in found] == [c.choices[0].token_ids for c in expected]
    assert any(plan.batch.ahead for plan in plans)
