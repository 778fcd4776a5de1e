"""The calibration of forecasts, simulated."""

import math

import pytest

from benchmarks.studies import deadlines
from tests.representatives import stand_for_all


@pytest.mark.wide
@pytest.mark.parametrize("load", stand_for_all([0.6], [0.3, 0.6]))
def test_nine_of_ten_batches_end_when_the_forecast_says(load: float) -> None:
    found, counted = deadlines.calibrate(seed=1, batches=200, load=load)
    assert len(counted) == 200
    assert 0.85 <= found.done_by <= 0.95
    assert 0.85 <= found.promised <= 0.95
    assert found.count > 100
    late = [each for each in counted if each.outlook.probability < 0.5]
    assert sum(deadlines.ended_by(each, each.due) for each in late) <= len(late) / 2


def test_a_simulation_repeats() -> None:
    one, other = (deadlines.calibrate(seed=7, batches=30, load=0.5) for _ in range(2))
    assert one == other
    assert not math.isnan(one[0].promised)
