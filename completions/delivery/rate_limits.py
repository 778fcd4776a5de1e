"""Headers about an API key's limits, and the errors when one is reached.

https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
"""

import math

from completions.accounts.keys import Principal
from completions.contract.error_codes import NEVER
from completions.contract.job_request import JobRequest
from completions.contract.limits import LIMITS, RATES, Rate
from completions.exceptions import APIError
from completions.http.process import WebProcess
from completions.jobs.limits import (
    BudgetReachedError,
    ByteBounds,
    BytesFullError,
    LimitReachedError,
    Limits,
    Remaining,
)
from completions.jobs.new_job import NewJob
from completions.models.usage import NANOS

_KINDS = {limit.name: limit for limit in LIMITS}


async def count_request(process: WebProcess, principal: Principal) -> dict[str, str]:
    """Count a request toward the key's requests per minute before work that no job pays for.
    Returns the headers about its limits. Raises APIError."""
    if not any(rate.is_counted_early and rate.name in principal.limits.rates for rate in RATES):
        return {}
    try:
        submission = process.find_shard_by_organization(principal.organization_id).submission
        remaining = await submission.count_request(principal.key_id, principal.limits)
    except LimitReachedError as error:
        raise refuse_limit(error, principal.limits) from error
    return make_headers(remaining)


def make_headers(remaining: Remaining) -> dict[str, str]:
    """Return the `x-ratelimit-*` headers for the key's limits."""
    headers = {}
    for name, allowance in remaining.items():
        headers[f"x-ratelimit-limit-{name}"] = str(allowance.limit)
        headers[f"x-ratelimit-remaining-{name}"] = str(allowance.remaining)
        headers[f"x-ratelimit-reset-{name}"] = format_duration(allowance.seconds_to_full)
    return headers


def refuse_limit(
    reached: LimitReachedError, limits: Limits, request: JobRequest | None = None
) -> APIError:
    """Return the error for a request that reaches a limit, as a job or before it is one."""
    kind = _KINDS[reached.limit]
    limit, asked = limits.max_concurrency, 0
    if isinstance(kind, Rate):
        limit = limits.rates[kind.name]
        asked = kind.measure(request) if request is not None else 0
    message = kind.message.format(limit=limit, asked=asked)
    never = limit is not None and asked > limit
    advice = " Shorten the prompt, lower max_tokens or n, or ask your administrator for more."
    wait = f" Retry in {format_duration(reached.retry_after)}."
    retry = (
        NEVER
        if never
        else {
            "Retry-After": str(max(1, math.ceil(reached.retry_after))),
            "retry-after-ms": str(max(1, math.ceil(reached.retry_after * 1000))),
        }
    )
    headers = {**make_headers(reached.remaining), **retry}
    return APIError(kind.error, message + (advice if never else wait), headers=headers)


_BUDGETS = {
    "daily_tokens": "a budget of {limit} tokens a day (UTC)",
    "monthly_tokens": "a budget of {limit} tokens a month",
    "daily_cost": "a budget of {limit} a day (UTC)",
    "monthly_cost": "a budget of {limit} a month",
}


def refuse_budget(reached: BudgetReachedError, job: NewJob) -> APIError:
    """Return the error for a job that the budget of its key or organization does not allow."""
    limits = job.limits
    budget = limits.organization_budget if reached.of_organization else limits.budget
    costs = reached.name.endswith("cost")
    asked = job.max_cost if costs else job.max_total_tokens
    limit, used, asked_text = (
        _format_money(amount) if costs else str(amount)
        for amount in (getattr(budget, reached.name), reached.used, asked)
    )
    whose = "your organization" if reached.of_organization else "this API key"
    message = (
        f"You exceeded your current quota: {whose} has {_BUDGETS[reached.name].format(limit=limit)}"
        f", of which {used} are used or reserved, and this request can use {asked_text}. Ask for "
        "less, or ask your administrator for more."
    )
    return APIError("insufficient_quota", message)


def refuse_queue_full(most: int) -> APIError:
    """Return the error for a key that already has `most` open jobs, the maximum."""
    return APIError(
        "queue_full",
        f"This API key has {most} requests waiting or running, the most that one key may have. "
        "Wait until some have ended, or send them as a batch.",
    )


def refuse_bytes(full: BytesFullError, bounds: ByteBounds, size: int) -> APIError:
    """Return the error for a request of `size` bytes whose key or organization holds too many
    already."""
    whose, most = (
        ("your organization", bounds.of_organization)
        if full.of_organization
        else ("this API key", bounds.of_key)
    )
    return APIError(
        "queue_full",
        f"The waiting and running requests of {whose} hold {full.held} bytes, and this one has "
        f"{size}; at most {most} may be held. Wait until some have ended, or send them as a batch.",
    )


def _format_money(nanos: int) -> str:
    """Format an amount in units of the currency, without trailing zeros."""
    text = f"{nanos / NANOS:.9f}".rstrip("0")
    return text.removesuffix(".")


def format_duration(seconds: float) -> str:
    """Format a duration as Go's ParseDuration reads it and OpenAI writes it: `12ms`, `1s`,
    `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    return f"{whole // 60}m{whole % 60}s" if whole >= 60 else f"{whole}s"
