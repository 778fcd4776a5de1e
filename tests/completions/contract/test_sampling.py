"""Ranges of sampling parameters: their bounds, and that every default lies inside."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.sampling import FLOATS, INTEGERS, LOGIT_BIAS, Range


@pytest.mark.parametrize(
    ("range", "inside", "outside"),
    [
        (Range(0.0), [0, -1e308, 10**300], [math.nan, math.inf, -math.inf, 10**400]),
        (Range(1.0, low=0.0, high=2.0), [0, 2.0, 5e-324], [-5e-324, 2.1, 10**400, -(10**400)]),
        (Range(1.0, low=0.0, excludes_low=True), [5e-324, 1], [0, 0.0, -1]),
    ],
)
def test_a_range_holds_what_lies_inside_and_nothing_outside(range, inside, outside):
    assert all(value in range for value in inside)
    assert not any(value in range for value in outside)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_defaults_lie_in_their_range(name):
    range = {**FLOATS, **INTEGERS}[name]
    assert range.default in range


@given(st.integers() | st.floats())
def test_any_number_has_an_answer(value):
    assert (value in LOGIT_BIAS) == (-100 <= value <= 100)
