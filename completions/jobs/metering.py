"""What a job can cost at most, and what its record says of it once it has ended."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from completions.jobs.limits import Limits

SEVERAL_ADAPTERS = "*"
"""Of a job whose prompts run with different ones."""
_NEUTRAL = {"n": 1, "top_p": 1, "repetition_penalty": 1, "top_k": -1}
"""Values without effect, beside those that are false."""


def most_tokens(request: Mapping[str, Any]) -> int:
    """Tokens that a job can use: every prompt once, every choice at its longest."""
    prompts, completions = _most(request)
    return prompts + completions


def most_cost(request: Mapping[str, Any], prices: Sequence[float]) -> int:
    """In billionths, by the prices of a token of a prompt, a cached prompt and a completion."""
    if not prices:
        return 0
    prompts, completions = _most(request)
    return math.ceil(prompts * max(prices[:2]) + completions * prices[2])


def _most(request: Mapping[str, Any]) -> tuple[int, int]:
    prompts, sampling = request.get("prompts", ()), request.get("sampling", {})
    choices = sampling.get("best_of") or sampling.get("n", 1)
    longest = int(choices * sampling.get("max_tokens", 0))
    return sum(map(len, prompts)), longest * len(prompts)


def metering(
    owner: tuple[int, int],
    limits: Limits,
    times: tuple[float, float | None],
    request: Mapping[str, Any],
    cost: int,
) -> bytes:
    """What `submit.lua` is told of the owner, an API key and its organization, and of what the job
    takes. `times` are the seconds until its deadline and until its place is free at the latest;
    None for the latter: it needs none."""
    key, organization = owner
    seconds, lease = times
    rates = (limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrency)
    told = {
        "key": key,
        "organization": organization,
        "limits": [rate or 0 for rate in rates],
        "seconds": seconds,
        "tokens": most_tokens(request),
        "cost": cost,
        "budgets": [limits.budget.as_list(), limits.organization_budget.as_list()],
    }
    return orjson.dumps(told if lease is None else {**told, "lease": lease})


def adapter_of(request: Mapping[str, Any]) -> str:
    """The adapter of all prompts, empty for none."""
    names = set(request.get("adapters") or [None])
    return SEVERAL_ADAPTERS if len(names) > 1 else (names.pop() or "")


def parameters_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, without prompts, grammar and what is as it is anyway."""
    grammar = request.get("grammar")
    told = {
        "prompts": len(request.get("prompts", ())),
        "constrained": grammar is not None,
        "priority": request.get("priority"),
        **request.get("sampling", {}),
    }
    return {name: value for name, value in told.items() if value and value != _NEUTRAL.get(name)}
