"""Intervals of 90 % hold as often as they say, for batches whose lengths are not normal."""

import random

import pytest

from completions.batches.histogram import Histogram
from completions.batches.planning.intervals import compute_quantile, predict_next, predict_sum

LINES, PILOT, MOST = 1000, 50, 512
BATCHES = 40


def lengths(chance):
    """Completion tokens of one batch: short and long answers, many of which are cut."""
    shape = chance.choice(("tail", "cut", "mixed"))
    scale = chance.uniform(20, 200)
    drawn = []
    for _ in range(LINES):
        length = chance.lognormvariate(0, 0.8) * scale
        if shape == "mixed" and chance.random() < 0.3:
            length = chance.uniform(1, 5)
        drawn.append(min(MOST if shape != "tail" else 10**6, max(1, round(length))))
    return drawn


def test_sums_of_simulated_batches_lie_in_their_intervals():
    chance = random.Random(7)  # noqa: S311
    covered, widths = 0, []
    for _ in range(BATCHES):
        batch = lengths(chance)
        sample = Histogram()
        for length in chance.sample(batch, PILOT):
            sample.add(length)
        interval = predict_sum(sample, LINES - PILOT)
        covered += interval.least <= sum(batch) <= interval.most
        widths.append((interval.most - interval.least) / sum(batch))
    assert covered >= 0.85 * BATCHES
    assert max(widths) < 1  # an interval that says nothing would cover everything


def test_the_next_speed_lies_in_its_interval():
    chance = random.Random(8)  # noqa: S311
    covered = 0
    for _ in range(BATCHES):
        *known, new = (1000 * chance.lognormvariate(0, 0.2) for _ in range(9))
        interval = predict_next(known)
        covered += interval.least <= new <= interval.most
    assert covered >= 0.85 * BATCHES


def test_small_samples_have_no_interval():
    few = Histogram()
    for _ in range(4):
        few.add(3)
    assert predict_sum(few, 10) is None
    assert predict_next([]) is None
    assert predict_next([2.0, 2.0]) == (None, None, pytest.approx(2.0))


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.132), (9, 1.833), (29, 1.699)])
def test_quantiles_of_student(freedom, quantile):
    assert compute_quantile(freedom) == pytest.approx(quantile, abs=0.003)
