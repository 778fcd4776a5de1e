"""Streams keep their pace while prompts are computed, on a simulated machine."""

import operator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engine.scheduling.scheduler_bench import Bench, sequence, sizes
from workers.engine.core.request import Audience
from workers.engine.core.sequence import Sequence
from workers.engine.scheduling.chunk_sizes import LEAST_CHUNK
from workers.engine.scheduling.step_times import StepWork
from workers.engine.scheduling.waiting_queue import MAX_PASSED_OVER

LIMIT = 0.08
COSTS = (0.010, 0.0005, 0.0002, 0.00035, 0.00012)


def cost(costs: tuple[float, ...], work: StepWork) -> float:
    return sum(map(operator.mul, work, costs))


def machine(costs: tuple[float, ...] = COSTS, budget: int = 512, slots: int = 8) -> Bench:
    return Bench(
        num_blocks=20_000, budget=budget, slots=slots, step_seconds=LIMIT, cost=partial(cost, costs)
    )


def stream(bench: Bench, audience: Audience = Audience.TOKENS) -> Sequence:
    """A sequence that generates for the whole test, after its first tokens."""
    seq = sequence(64, 100_000, organization="reader", audience=audience)
    bench.add(seq)
    for _ in range(20):
        bench.step()
    return seq


def prompt_rows(bench: Bench) -> int:
    """Run a step. Return how many rows of prompts it had."""
    return sum(size for size in sizes(bench.step()) if size > 1)


def test_a_long_prompt_does_not_stop_a_stream() -> None:
    bench = machine()
    reader = stream(bench)
    bench.add(long := sequence(7000, 1))
    before, worst, steps = reader.num_tokens, 0.0, 0
    while not long.finished:
        bench.step()
        steps += 1
        worst = max(worst, bench.seconds)
    assert reader.num_tokens - before == steps  # a token in every step
    assert worst <= LIMIT
    assert steps < 200


@given(
    st.tuples(
        st.floats(0.002, 0.05), st.floats(0, 0.001), st.floats(0, 0.0005), st.floats(2e-5, 0.002),
        st.floats(0, 0.0005),
    ),
    st.integers(1, 5),
    st.lists(st.integers(2, 3000), min_size=1, max_size=6),
)  # fmt: skip
def test_steps_beside_streams_stay_within_the_limit(
    costs: tuple[float, ...], streams: int, prompts: list[int]
) -> None:
    """From the third chunk on, as far as the smallest chunks allow it; and every prompt ends. The
    costs are learnt from two chunks then, to some 20 %."""
    bench = machine(costs, slots=16)
    for _ in range(streams):
        stream(bench)
    alone = bench.seconds
    waiting = [sequence(length, 1, organization=str(n)) for n, length in enumerate(prompts)]
    bench.add(*waiting)
    steps = 0
    while not all(seq.finished for seq in waiting):
        rows = prompt_rows(bench)
        steps += 1
        assert rows
        if steps > 2 and rows > LEAST_CHUNK:
            assert bench.seconds <= 1.2 * max(LIMIT, 3 * alone)
        assert steps <= sum(prompts) / LEAST_CHUNK + 2 * len(prompts)


@pytest.mark.parametrize("audience", [None, Audience.NOBODY])
def test_chunks_are_full_where_nobody_waits(audience: Audience | None) -> None:
    bench = machine()
    decoding = 0
    if audience is not None:
        stream(bench, audience)
        decoding = 1
    bench.add(sequence(7000, 1, audience=Audience.TOKENS))  # has nothing to read yet
    assert [prompt_rows(bench) for _ in range(5)] == 5 * [512 - decoding]


def test_who_waits_for_an_answer_waits_longer_for_a_token_than_who_reads_along() -> None:
    rows = {}
    for audience in Audience:
        bench = machine(budget=4096)
        stream(bench, audience)
        bench.add(sequence(30_000, 1))
        for _ in range(5):
            rows[audience] = prompt_rows(bench)
    assert rows[Audience.TOKENS] < rows[Audience.ANSWER] / 2 < rows[Audience.NOBODY] / 4


def test_costs_of_prompts_that_ran_alone_are_used_beside_a_stream() -> None:
    bench = machine()
    bench.add(early := sequence(3000, 1))
    while not early.finished:
        bench.step()
    stream(bench)
    bench.add(sequence(7000, 1))
    assert prompt_rows(bench) >= 96
    assert bench.seconds <= LIMIT


def test_a_slow_model_still_computes_prompts() -> None:
    """Its steps exceed the limit without any prompt."""
    slow = tuple(30 * each for each in COSTS)
    bench = machine(slow)
    reader = stream(bench)
    alone = bench.seconds
    bench.add(sequence(2000, 1))
    for _ in range(10):
        assert prompt_rows(bench) >= LEAST_CHUNK
        assert bench.seconds <= 3 * alone
    assert reader.num_output_tokens > 10


def test_several_prompts_share_a_step() -> None:
    bench = machine()
    stream(bench)
    bench.add(warm := sequence(500, 1))
    while not warm.finished:
        bench.step()
    bench.add(*(sequence(30, 1) for _ in range(3)))
    assert sizes(bench.step()) == [1, 30, 30, 30]


@pytest.mark.parametrize("organization", ["same", "other"])
def test_a_short_prompt_overtakes_a_long_one(organization: str) -> None:
    bench = machine()
    stream(bench)
    bench.add(long := sequence(7000, 1, organization="same"))
    for _ in range(10):
        bench.step()
    bench.add(short := sequence(40, 1, organization=organization))
    bench.step()
    assert short.finished
    assert not long.finished


def test_short_prompts_without_end_do_not_starve_a_long_one() -> None:
    bench = machine(slots=4)
    stream(bench)
    bench.add(long := sequence(1500, 1, organization="long"))
    longest = wait = 0
    steps = 0
    while not long.finished:
        for _ in range(4):
            bench.add(sequence(100, 1, organization="short"))
        before = long.num_computed
        bench.step()
        wait = 0 if long.finished or long.num_computed > before else wait + 1
        longest = max(longest, wait)
        steps += 1
        assert steps < 2000
    assert 0 < longest <= MAX_PASSED_OVER


def test_forced_tokens_of_a_stream_are_not_cut() -> None:
    bench = machine()
    reader = stream(bench)
    bench.add(sequence(7000, 1))
    for _ in range(10):
        bench.step()
    reader.token_ids += [1] * 300
    assert dict(bench.step().chunks)[reader] == 301
