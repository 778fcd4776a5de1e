"""The usage object of responses: token counts and, for a model with prices, costs."""

from collections.abc import Mapping

from completions.contract.usage import Usage

_DIGITS = 12
"""Decimal places of costs."""


def make_usage(
    usage: Usage, reasoning_tokens: int = 0, prices: Mapping[str, float] | None = None
) -> dict[str, object]:
    """Make the `usage` object. Token details are always present, costs only if there are
    prices."""
    used = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "reasoning_tokens": reasoning_tokens,
    }
    return {**used, **_make_cost(usage, prices)} if prices else used


def _make_cost(usage: Usage, prices: Mapping[str, float]) -> dict[str, object]:
    """Return costs in the currency of the prices, which are per million tokens of each kind in
    PRICED."""
    counts = {
        "prompt": usage.prompt_tokens - usage.cached_tokens,
        "cached_prompt": usage.cached_tokens,
        "completion": usage.completion_tokens,
    }
    details = {kind: round(n * prices[kind] / 1e6, _DIGITS) for kind, n in counts.items()}
    return {"cost": round(sum(details.values()), _DIGITS), "cost_details": details}
