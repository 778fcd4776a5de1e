"""No organization waits for the long outputs or prompts of another one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engine.scheduling.scheduler_bench import Bench, sequence
from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import UNPLACED
from workers.engine.scheduling import turns


def crowd(
    bench: Bench, count: int, max_tokens: int = 800, organization: str = "a"
) -> list[Sequence]:
    """Sequences of one organization, as far as they go without others."""
    sequences = [sequence(3, max_tokens, organization=organization) for _ in range(count)]
    bench.add(*sequences)
    for _ in range(20):
        bench.step()
    return sequences


def test_the_newest_of_the_organization_with_most_slots_yields() -> None:
    bench = Bench(num_blocks=2000, budget=64)
    *_, newest, waiting = crowd(bench, 5)
    assert waiting.slot == UNPLACED
    bench.add(late := sequence(3, organization="b"))
    bench.step()
    assert late.slot != UNPLACED
    assert newest.slot == UNPLACED
    bench.add(later := sequence(3, organization="b"))
    bench.step()
    assert later.slot == UNPLACED  # its organization has a slot
    bench.run()
    assert bench.scheduler.preemptions == 1


def test_several_yield_for_a_long_prompt() -> None:
    bench = Bench(num_blocks=120, budget=500, slots=8)
    crowd(bench, 8, max_tokens=100)
    late = sequence(380, organization="b")
    bench.add(late)
    bench.step()
    assert late.slot != UNPLACED
    assert bench.scheduler.preemptions > 1
    bench.run()


def test_none_yields_for_a_prompt_that_does_not_fit_even_so() -> None:
    bench = Bench(num_blocks=120, budget=500, slots=4)
    bench.add(first := sequence(300, 100, organization="a"))
    crowd(bench, 2, max_tokens=100, organization="a")
    bench.add(late := sequence(400, organization="b"))
    for _ in range(10):
        bench.step()
    assert late.slot == UNPLACED
    assert first.slot != UNPLACED
    assert bench.scheduler.preemptions == 0
    bench.run()


def test_short_calls_without_end_do_not_stop_the_others() -> None:
    """Each sequence that yields makes progress before it yields again."""
    bench = Bench(num_blocks=4000, budget=64)
    long = crowd(bench, 5)
    steps = waits = 0
    while not all(seq.finished for seq in long):
        call = sequence(3, 4, organization="b")
        bench.add(call)
        while not call.finished:
            bench.step()
            steps += 1
            waits += call.slot == UNPLACED and not call.finished
            assert steps < 20_000
    gained = sum(seq.sampling.max_tokens for seq in long)
    assert bench.scheduler.preemptions <= len(long) + gained / turns.LEAST_PROGRESS
    assert steps < 1.5 * gained / 3  # three slots are always theirs


def test_prompts_that_stay_in_the_cache_do_not_let_others_wait() -> None:
    """All that yielded start again without computing their long prompts."""
    bench = Bench(num_blocks=8000, budget=64)
    long = [sequence(1200, 400, organization="a") for _ in range(6)]
    bench.add(*long)
    for _ in range(150):
        bench.step()
    longest = 0
    while not all(seq.finished for seq in long):
        for _ in range(6):
            bench.step()
        bench.add(call := sequence(3, 4, organization="b"))
        wait = 0
        while not call.finished:
            bench.step()
            wait += call.slot == UNPLACED
        longest = max(longest, wait)
    assert longest <= turns.LEAST_PROGRESS


def test_none_yields_for_blocks_that_others_share() -> None:
    bench = Bench(num_blocks=100, budget=500)
    prompt = list(range(240))
    bench.add(*(sequence(prompt, 80, organization="a") for _ in range(3)))
    for _ in range(8):
        bench.step()
    assert bench.scheduler.num_running == 3
    bench.add(late := sequence(200, organization="b"))
    bench.step()
    assert bench.scheduler.preemptions == 0, "the blocks of the prompt stay in use"
    bench.run()
    assert late.finished


def test_more_organizations_than_slots_take_turns() -> None:
    bench = Bench(num_blocks=4000, budget=64, slots=2)
    sequences = [sequence(3, 300, organization=name) for name in "abcde"]
    bench.add(*sequences)
    for _ in range(3 * (turns.LEAST_PROGRESS + 5)):
        bench.step()
    assert all(seq.num_output_tokens for seq in sequences)
    bench.run()


@pytest.mark.parametrize("running", [True, False])
def test_a_short_prompt_does_not_wait_for_long_ones_of_others(running: bool) -> None:
    bench = Bench(num_blocks=2000, budget=10, slots=8)
    bench.add(*(sequence(400, organization="a") for _ in range(6)))
    if running:
        for _ in range(10):
            bench.step()
    bench.add(short := sequence(5, 2, organization="b"))
    for _ in range(4):
        bench.step()
    assert short.finished
    bench.run()


arrivals = st.lists(
    st.tuples(
        st.integers(0, 3),  # steps since the one before
        st.sampled_from("abcdef"),
        st.integers(1, 30),  # tokens of its prompt
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=25,
)


@given(arrivals, st.integers(1, 4))
def test_no_organization_waits_long(arrivals: list[tuple[int, str, int, int]], slots: int) -> None:
    bench = Bench(num_blocks=600, budget=16, slots=slots)
    waited = Counter[str]()
    live: list[Sequence] = []
    plan = list(arrivals)
    pause = plan[0][0]
    steps = 0
    least, turns.LEAST_PROGRESS = turns.LEAST_PROGRESS, 4
    try:
        while plan or live:
            while plan and pause <= 0:
                _, organization, prompt, most = plan.pop(0)
                live.append(sequence(prompt, most, organization=organization))
                bench.add(live[-1])
                pause = plan[0][0] if plan else 0
            pause -= 1
            bench.step()
            live = [seq for seq in live if not seq.finished]
            running = {seq.origin.organization for seq in live if seq.slot != UNPLACED}
            for organization in "abcdef":
                has_any = any(seq.origin.organization == organization for seq in live)
                waits = has_any and organization not in running
                waited[organization] = waited[organization] + 1 if waits else 0
            # A turn is a prompt in chunks and an output, by no more than an eighth of the budget.
            assert max(waited.values()) <= 6 * 60
            steps += 1
            assert steps < 10_000
    finally:
        turns.LEAST_PROGRESS = least
    assert bench.pool.num_used == 0
