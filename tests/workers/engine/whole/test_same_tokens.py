"""A seed gives the same tokens and the same log probabilities whatever else runs: beside other
requests, with a cache too small for all of them, and after a failover."""

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.adapters import save_adapter
from tests.workers.engine.backends.cpu.test_decoder import engine_of, save, skip_without
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.core.output import ChoiceDelta, Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")

SEEDS = 24
TOKENS = 48
CACHE_BYTES = 2**19
"""64 blocks of 16 tokens; the sequences below fill more than twice as many."""

Said = tuple[list[int], list[float]]
"""Tokens and their log probabilities."""
Alone = Callable[[str, float], list[Said]]
"""What each seed gives in an engine of its own, by dtype and temperature."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model"), "llama", {})


@pytest.fixture(scope="module")
def expected_of(path: Path) -> Alone:
    return cache(lambda dtype, temperature: alone(engine_of(path, dtype=dtype), temperature))


def ask(seed: int, temperature: float, published: tuple[int, ...] = ()) -> Request:
    """Every third request begins with the same 33 tokens."""
    prompt = greedy.prompt(33) if seed % 3 == 0 else ()
    prompt += greedy.prompt(3 + seed, salt=seed)
    return Request(
        (prompt,),
        SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=seed, ignore_eos=True),
        logprobs=(LogprobParams(),),
        published={0: published} if published else {},
        request_id=f"{seed}",
    )


def neighbours(count: int = 12) -> list[Request]:
    params = SamplingParams(max_tokens=TOKENS, temperature=1, top_p=0.9, seed=5, ignore_eos=True)
    return [
        Request((greedy.prompt(5 + 3 * i, salt=99 + i),), params, request_id=f"neighbour {i}")
        for i in range(count)
    ]


def said(completions: list[Completion]) -> list[Said]:
    """By the first choice of each."""
    assert [completion.error for completion in completions] == [None] * len(completions)
    return [said_by(completion.choices[0]) for completion in completions]


def said_by(choice: ChoiceDelta) -> Said:
    assert choice.logprobs is not None
    return choice.token_ids, choice.logprobs.chosen.tolist()


drawn_or_greedy = pytest.mark.parametrize(
    ("dtype", "temperature"),
    stand_for_all([("bfloat16", 1)], product(["bfloat16", "int8"], [1, 0])),
)


def alone(engine: Engine, temperature: float) -> list[Said]:
    return [said(engine.generate([ask(seed, temperature)]))[0] for seed in range(SEEDS)]


@pytest.mark.wide
@drawn_or_greedy
def test_all_seeds_repeat(path: Path, expected_of: Alone, dtype: str, temperature: float) -> None:
    skip_without(dtype)
    expected = expected_of(dtype, temperature)
    assert len({tuple(tokens) for tokens, _ in expected}) == SEEDS
    engine = engine_of(path, dtype=dtype, kv_cache_bytes=CACHE_BYTES, max_num_batched_tokens=256)
    requests = [ask(seed, temperature) for seed in range(SEEDS)]
    together = said(engine.generate([*requests, *neighbours()])[:SEEDS])
    assert together == expected
    assert engine.stats().preemptions > 0
    assert engine.stats().prefix_cache_hits > 0
    assert alone(engine, temperature) == expected


@pytest.mark.wide
@drawn_or_greedy
def test_all_seeds_repeat_after_a_failover(
    path: Path, expected_of: Alone, dtype: str, temperature: float
) -> None:
    """Another worker continues after the published tokens, which are a part of its prompt."""
    skip_without(dtype)
    expected = expected_of(dtype, temperature)
    cuts = [seed % (TOKENS - 1) + 1 for seed in range(SEEDS)]
    requests = [
        ask(seed, temperature, published=tuple(expected[seed][0][:cut]))
        for seed, cut in enumerate(cuts)
    ]
    engine = engine_of(path, dtype=dtype, kv_cache_bytes=CACHE_BYTES, max_num_batched_tokens=256)
    rest = said(engine.generate([*requests, *neighbours()])[:SEEDS])
    assert rest == [
        (tokens[cut:], logprobs[cut:])
        for (tokens, logprobs), cut in zip(expected, cuts, strict=True)
    ]


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_all_seeds_repeat_through_modules_one_sequence_at_a_time(path: Path, dtype: str) -> None:
    """The modules' kernels order sums by the shape of a step, which is always the same here."""
    settings = {"dtype": dtype, "block_size": 4, "num_threads": 1, "speculation": False}
    expected = alone(engine_of(path, **settings, enable_prefix_caching=False), 1)
    engine = engine_of(path, **settings, enable_prefix_caching=False, max_num_seqs=1)
    assert engine.forward == "torch"
    requests = [ask(seed, 1) for seed in range(SEEDS)]
    assert said(engine.generate([*neighbours(4), *requests])[4:]) == expected


@pytest.mark.parametrize("dtype", stand_for_all(["int8"], ["bfloat16", "int8"]))
def test_greedy_choices_of_one_request_say_the_same(path: Path, dtype: str) -> None:
    skip_without(dtype)
    params = SamplingParams(max_tokens=TOKENS, temperature=0, n=4, ignore_eos=True)
    wanted = (LogprobParams(),)
    request = Request((greedy.prompt(2),), params, logprobs=wanted, request_id="four")
    # With the 4 choices, a step has 33 rows, one more than the matrix kernels take at once.
    first, *_ = engine_of(path, dtype=dtype).generate([request, *neighbours(29)])
    assert len(first.choices) == 4
    assert len({tuple(tokens) for tokens, _ in map(said_by, first.choices)}) == 1
    assert len({tuple(logprobs) for _, logprobs in map(said_by, first.choices)}) == 1


@pytest.mark.wide
@pytest.mark.parametrize("dtype", stand_for_all(["bfloat16"], ["bfloat16", "int8"]))
def test_requests_that_need_the_modules_change_no_others(
    path: Path, expected_of: Alone, tmp_path: Path, dtype: str
) -> None:
    """Requests with an adapter or recorded hidden states have the same prompts as others. The
    modules compute them separately, and they leave nothing in the prefix cache."""
    skip_without(dtype)
    expected = expected_of(dtype, 1)
    adapters = {"a": save_adapter(tmp_path, path)}
    engine = engine_of(path, dtype=dtype, adapters=adapters, max_num_batched_tokens=256)
    watched = [
        replace(ask(seed, 1), request_id=f"{seed} {options}", **options)
        for seed in range(0, SEEDS, 2)
        for options in ({"adapters": ("a",)}, {"return_hidden_states": True})
    ]
    completions = engine.generate([*watched, *(ask(seed, 1) for seed in range(SEEDS))])
    assert said(completions[len(watched) :]) == expected
    assert said(completions[: len(watched) : 2]) != expected[::2]
    assert all(c.choices[0].hidden_states is not None for c in completions[1 : len(watched) : 2])
    assert alone(engine, temperature=1) == expected
