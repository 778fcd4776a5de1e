"""What a caller is told of its API key's limits: headers, and the 429 when one is reached.

https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
"""

import math

from completions.api.exceptions import RateLimited
from completions.jobs.limits import Allowance, LimitReachedError, Limits, Remaining

_TOO_MANY = {
    "requests": "This API key may send {limit} requests per minute.",
    "tokens": "This API key may use {limit} tokens per minute, and this request can use {asked}.",
    "concurrency": "This API key may have {limit} requests running at a time.",
}


def headers(remaining: Remaining) -> dict[str, str]:
    """`x-ratelimit-*` for the limits that the key has."""
    shown = {}
    for name in ("requests", "tokens"):
        allowance: Allowance | None = getattr(remaining, name)
        if allowance is not None:
            shown[f"x-ratelimit-limit-{name}"] = str(allowance.limit)
            shown[f"x-ratelimit-remaining-{name}"] = str(allowance.remaining)
            shown[f"x-ratelimit-reset-{name}"] = duration(allowance.seconds_to_full)
    return shown


def refusal(reached: LimitReachedError, limits: Limits, most_tokens: int) -> RateLimited:
    """The 429 for a request that can use `most_tokens` tokens."""
    limit = {
        "requests": limits.requests_per_minute,
        "tokens": limits.tokens_per_minute,
        "concurrency": limits.max_concurrency,
    }[reached.limit]
    message = _TOO_MANY[reached.limit].format(limit=limit, asked=most_tokens)
    never = reached.limit == "tokens" and limit is not None and most_tokens > limit
    advice = " Shorten the prompt, lower max_tokens or n, or ask your administrator for more."
    wait = f" Retry in {duration(reached.retry_after)}."
    error = RateLimited(reached.limit, message + (advice if never else wait))
    error.headers.update(headers(reached.remaining))
    if never:
        error.headers["x-should-retry"] = "false"
    else:
        error.headers["Retry-After"] = str(max(1, math.ceil(reached.retry_after)))
        error.headers["retry-after-ms"] = str(max(1, math.ceil(reached.retry_after * 1000)))
    return error


def duration(seconds: float) -> str:
    """As Go's ParseDuration reads it, in OpenAI's style: `12ms`, `1s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    return f"{whole // 60}m{whole % 60}s" if whole >= 60 else f"{whole}s"
