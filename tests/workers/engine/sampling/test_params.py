import math
from typing import Any

import pytest

from completions.contract.sampling import SamplingParams


@pytest.mark.parametrize(
    "nonsense",
    [
        {"max_tokens": -1},
        {"min_tokens": -1},
        {"min_tokens": 17},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"frequency_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"repetition_penalty": 0.0},
        {"logit_bias": {1: math.inf}},
        {"n": 0},
        {"stop": ("a", "")},
        {"stop_regex": ("",)},
        {"stop_regex": ("a",) * 33},
        {"stop_regex": ("\u00e9" * 129,)},
    ],
)
def test_nonsense_is_refused_by_name(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(nonsense))):
        SamplingParams(**nonsense)


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-6, True), (0.01, False)])
def test_a_temperature_near_zero_is_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy
