import math
import operator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.scheduling.step_times import StepTimes, StepWork

COSTS = (0.010, 0.0005, 0.0002, 0.00035, 0.00012)
"""Seconds per step; per decoded row and its thousand positions; the same of a prompt's row."""


def seconds(work: StepWork, speed: float = 1.0, costs: tuple[float, ...] = COSTS) -> float:
    return speed * sum(map(operator.mul, work, costs))


def prompts(count: int, size: int = 128, streams: int = 2) -> list[StepWork]:
    """Steps of a prompt beside streams."""
    works = []
    for number in range(count):
        work = StepWork().add(number * size, size)
        for _ in range(streams):
            work = work.add(64 + number, 1)
        works.append(work)
    return works


def test_work_counts_rows_and_their_positions() -> None:
    work = StepWork().add(2000, 1).add(1000, 3)
    assert work == StepWork(1, 1, 2.0, 3, 3.003)


def test_nothing_is_known_before_the_first_step() -> None:
    times = StepTimes()
    assert not times.is_known
    assert times.bound(StepWork().add(0, 512)) == 0
    times.note(StepWork().add(0, 1), 0.0)  # a clock that stands still
    assert not times.is_known


costs = st.tuples(
    st.floats(0.001, 1), st.floats(0, 0.01), st.floats(0, 0.01), st.floats(1e-5, 0.02),
    st.floats(0, 0.01),
)  # fmt: skip


@given(costs)
def test_it_learns_any_costs(costs: tuple[float, ...]) -> None:
    times = StepTimes()
    works = prompts(40)
    for work in works:
        times.note(work, seconds(work, costs=costs))
    for work in (works[-1], StepWork().add(5120, 128).add(104, 1).add(104, 1)):
        assert times.expect(work) == pytest.approx(seconds(work, costs=costs), rel=0.1)
        assert times.bound(work) >= times.expect(work)


@given(costs)
def test_the_first_guess_is_cautious(costs: tuple[float, ...]) -> None:
    """After steps of streams alone, the bound of a small chunk is above what it takes, as long as
    a prompt's row takes no more than a tenth of a step."""
    times = StepTimes()
    stream = StepWork().add(64, 1)
    for _ in range(50):
        times.note(stream, seconds(stream, costs=costs))
    work = stream.add(0, 16)
    if costs[3] <= seconds(stream, costs=costs) / 10:
        assert times.bound(work) > seconds(work, costs=costs)


@given(
    st.lists(
        st.tuples(st.integers(0, 8000), st.integers(1, 4096), st.floats(1e-12, 1e6)), max_size=60
    )
)
def test_no_times_spoil_what_is_known(steps: list[tuple[int, int, float]]) -> None:
    times = StepTimes()
    for first, size, taken in steps:
        times.note(StepWork().add(first, size), taken)
    for work in (StepWork().add(64, 1), StepWork().add(4096, 512)):
        assert 0 <= times.expect(work) < math.inf
        assert times.expect(work) <= times.bound(work) < math.inf


def test_costs_of_prompts_outlast_many_steps_without_one() -> None:
    times = StepTimes()
    for work in prompts(20):
        times.note(work, seconds(work))
    large = prompts(8)[-1]
    before = times.bound(large)
    for number in range(20_000):
        stream = StepWork().add(64 + number % 4000, 1)
        times.note(stream, seconds(stream))
    assert times.bound(large) == pytest.approx(before, rel=0.3)


@pytest.mark.parametrize("speed", [0.5, 1.8])
def test_a_change_of_the_machines_speed_is_learned_in_some_steps(speed: float) -> None:
    times = StepTimes()
    works = prompts(60)
    for number, work in enumerate(works[:-1]):
        times.note(work, seconds(work, 1.0 if number < 30 else speed))
    assert times.expect(works[-1]) == pytest.approx(seconds(works[-1], speed), rel=0.15)


def test_one_delayed_step_hardly_counts() -> None:
    times = StepTimes()
    works = prompts(31)
    for work in works[:-1]:
        times.note(work, seconds(work))
    before = times.expect(works[-1])
    times.note(works[-1], 50 * before)
    assert times.expect(works[-1]) < 1.3 * before


@pytest.mark.parametrize("noise", [0.1, 0.25])
def test_the_bound_grows_with_the_noise_of_the_machine(noise: float) -> None:
    times, random = StepTimes(), Random(1)  # noqa: S311 - the same noise in every run
    works = prompts(200, size=32)
    above = 0
    for number, work in enumerate(works):
        actual = seconds(work) * math.exp(random.gauss(0, noise))
        above += number >= 50 and actual > times.bound(work)
        times.note(work, actual)
    assert above < 0.15 * 150
    assert times.bound(works[-1]) > (1 + noise / 2) * times.expect(works[-1])
