"""Headers and refusals of rate limits."""

import pytest

from completions.contract.job_request import JobRequest
from completions.contract.sampling import SamplingParams
from completions.delivery import rate_limits
from completions.jobs.limits import Allowance, LimitReachedError, Limits


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s"), (7.5, "8s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert rate_limits.format_duration(seconds) == text


def test_headers_name_the_limits_that_there_are() -> None:
    assert rate_limits.make_headers({}) == {}
    assert rate_limits.make_headers({"tokens": Allowance(600, 300)}) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "300",
        "x-ratelimit-reset-tokens": "30s",
    }


def test_a_reached_request_rate_is_a_429() -> None:
    remaining = {"requests": Allowance(60, 0)}
    error = rate_limits.refuse_limit(
        LimitReachedError("requests", remaining, 0.25), Limits({"requests": 60})
    )
    assert error.status_code == 429
    assert (error.type, error.code) == ("requests", "rate_limit_exceeded")
    assert error.message == "This API key may send 60 requests per minute. Retry in 250ms."
    assert error.headers["Retry-After"] == "1"
    assert error.headers["retry-after-ms"] == "250"
    assert error.headers["x-ratelimit-reset-requests"] == "1m0s"


def test_a_request_above_the_limit_must_not_be_retried() -> None:
    limits = Limits({"tokens": 100})
    request = JobRequest(prompts=((7,),), sampling=SamplingParams(max_tokens=100))
    error = rate_limits.refuse_limit(LimitReachedError("tokens", {}, 30), limits, request)
    assert (error.type, error.code) == ("tokens", "rate_limit_exceeded")
    assert "lower max_tokens" in error.message
    assert error.headers["x-should-retry"] == "false"
    assert "Retry-After" not in error.headers


def test_a_reached_concurrency_is_a_429() -> None:
    limits = Limits(max_concurrency=3)
    error = rate_limits.refuse_limit(LimitReachedError("concurrency", {}, 1), limits)
    assert (error.type, error.code) == ("requests", "concurrency_limit_exceeded")
    assert "3 requests running" in error.message
