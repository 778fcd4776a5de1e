import itertools
from collections.abc import Callable
from random import Random

import pytest

from workers.engine.backends.cpu.thread_tuner import ThreadTuner

Cost = Callable[[int], float]


def run(tuner: ThreadTuner, steps: int, cost: Cost, num_tokens: int = 32) -> list[int]:
    """The threads that each of the steps ran on, when a step costs what ``cost`` says."""
    used = []
    for _ in range(steps):
        used.append(tuner.num_threads)
        tuner.record(num_tokens, cost(tuner.num_threads))
    return used


def alone(threads: int) -> float:
    return 60.0 / threads


def crowded(threads: int) -> float:
    return 200.0 if threads == 2 else 70.0


def test_all_threads_while_that_is_faster_and_hardly_a_trial() -> None:
    used = run(ThreadTuner(2), 2_000, alone)
    assert used.count(1) / len(used) < 0.03
    assert used[-1] == 2


def test_one_less_soon_after_a_neighbour_came_and_all_again_after_it_went() -> None:
    tuner = ThreadTuner(2)
    run(tuner, 500, alone)
    assert run(tuner, 30, crowded)[-1] == 1
    assert run(tuner, 500, crowded).count(2) < 60
    assert run(tuner, 600, alone)[-1] == 2


def test_a_small_gain_changes_nothing() -> None:
    used = run(ThreadTuner(2), 1_000, lambda threads: 0.95 if threads == 1 else 1.0)
    assert used[-1] == 2
    assert used.count(1) < 40


def test_single_slow_steps_do_not_bring_a_trial() -> None:
    def hiccup() -> Cost:
        count = itertools.count()
        return lambda threads: 2_000.0 if next(count) % 10 == 9 else alone(threads)

    used = run(ThreadTuner(2), 1_000, hiccup())
    assert used.count(1) < 50
    assert used[-1] == 2


@pytest.mark.parametrize("seed", range(6))
def test_a_machine_whose_speed_changes_does_not_bring_another_thread_count(seed: int) -> None:
    """Now and then, any step takes 1.8 times as long on any number of threads, as if two cores
    shared one. Times vary by a tenth."""
    random = Random(seed)  # noqa: S311
    slowness, left = 1.0, 0

    def wavering(threads: int) -> float:
        nonlocal slowness, left
        if not left:
            slowness, left = 2.8 - slowness, random.randint(4, 60)
        left -= 1
        return slowness * (1.0 if threads == 2 else 1.1) * random.uniform(0.9, 1.1)

    used = run(ThreadTuner(2), 20_000, wavering)
    assert used.count(1) / len(used) < 0.03  # trials only


def test_steps_of_another_size_are_not_compared() -> None:
    tuner = ThreadTuner(2)
    for step in range(300):
        run(tuner, 1, lambda threads: 1.0 if threads == 2 else 0.1, num_tokens=1 + 511 * (step % 2))
    assert tuner.num_threads == 2


def test_sizes_may_drift() -> None:
    tuner = ThreadTuner(4)
    for step in range(300):
        run(tuner, 1, lambda threads: float(threads), num_tokens=60 + step % 5)
    assert tuner.num_threads == 3


def test_one_core_leaves_nothing_to_choose() -> None:
    assert set(run(ThreadTuner(1), 200, crowded)) == {1}
