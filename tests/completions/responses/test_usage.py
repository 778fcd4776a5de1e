"""The usage object and its cost."""

from completions.contract.usage import Usage
from completions.responses.usage import make_usage

PRICES = {"prompt": 2.0, "cached_prompt": 0.5, "completion": 10.0}


def test_details_are_always_there_and_costs_only_where_there_are_prices():
    assert make_usage(Usage(5, 3, 2), reasoning_tokens=1) == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
        "reasoning_tokens": 1,
    }


def test_cached_tokens_have_a_price_of_their_own():
    used = make_usage(Usage(1_000_000, 100_000, 400_000), prices=PRICES)
    assert used["cost_details"] == {"prompt": 1.2, "cached_prompt": 0.2, "completion": 1.0}
    assert used["cost"] == 2.4
