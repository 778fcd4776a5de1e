"""The limits of API keys, one row each. The scripts, errors, headers, the admin and commands read
these rows; `ApiKey` has the column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from completions.contract.job_request import JobRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKind:
    name: str
    """What is limited, for scripts and headers."""
    column: str
    """The column of `ApiKey`, which is null for no limit."""
    error: str
    """The error of a request that reaches the limit, in `contract/error_codes.py`."""
    error_type: str
    """The error's type, as with OpenAI."""
    error_code: str | None = None
    """OpenAI's code for the error, where it has one."""
    summary: str
    """What the error says in general."""
    message: str
    """What the error says about a request that `asked` for so much of the key's `limit`."""
    help: str
    option: str
    """The option of `manage.py create_api_key`."""
    unit: str
    """A short unit for lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(LimitKind):
    """A limit per minute: a bucket that holds one minute's worth and refills evenly."""

    measure: Callable[[JobRequest], int]
    """What a job takes from the bucket."""
    is_counted_early: bool = False
    """Whether a request is counted once before it is checked at length, even if no job follows."""


RATES: Final[Sequence[Rate]] = (
    Rate(
        name="requests",
        column="requests_per_minute",
        error="request_rate_exceeded",
        error_type="requests",
        error_code="rate_limit_exceeded",
        summary="This API key sends too many requests per minute.",
        message="This API key may send {limit} requests per minute.",
        help="requests per minute",
        option="--rpm",
        unit="req/min",
        measure=lambda request: 1,
        is_counted_early=True,
    ),
    Rate(
        name="tokens",
        column="tokens_per_minute",
        error="token_rate_exceeded",
        error_type="tokens",
        error_code="rate_limit_exceeded",
        summary="This API key uses too many tokens per minute.",
        message=(
            "This API key may use {limit} tokens per minute, and this request can use {asked}."
        ),
        help="tokens per minute",
        option="--tpm",
        unit="tok/min",
        measure=lambda request: request.max_total_tokens,
    ),
)
CONCURRENCY: Final = LimitKind(
    name="concurrency",
    column="max_concurrency",
    error="concurrency_limit_exceeded",
    error_type="requests",
    summary="This API key has too many requests running.",
    message="This API key may have {limit} requests running at a time.",
    help="calls, streams, background jobs at a time",
    option="--max-concurrency",
    unit="at once",
)
LIMITS: Final[Sequence[LimitKind]] = (*RATES, CONCURRENCY)
REFUNDED: Final = "tokens"
"""The rate whose bucket gets back what an ended job did not use (`limits.lua`)."""
