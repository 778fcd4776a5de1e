"""What an API key may use of the service and what it has left; `lua/limits.lua` keeps count."""

from dataclasses import dataclass
from typing import Literal

MINUTE = 60.0

LimitName = Literal["requests", "tokens", "concurrency"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one API key; None is unlimited. `max_concurrency` counts calls that somebody waits for,
    streams included, not background jobs."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Allowance:
    """One bucket after a decision: it holds at most `limit` and refills as much per minute."""

    limit: int
    remaining: int

    @property
    def seconds_to_full(self) -> float:
        return (self.limit - self.remaining) * MINUTE / self.limit


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a key has left; None where it has no such limit."""

    requests: Allowance | None = None
    tokens: Allowance | None = None

    @classmethod
    def of(cls, limits: Limits, requests: float, tokens: float) -> "Remaining":
        return cls(
            _allowance(limits.requests_per_minute, requests),
            _allowance(limits.tokens_per_minute, tokens),
        )


def _allowance(limit: int | None, left: float) -> Allowance | None:
    return Allowance(limit, max(0, int(left))) if limit else None


class LimitReachedError(Exception):
    """The key has used up what it may; `retry_after` seconds from now the job would fit."""

    def __init__(self, limit: LimitName, remaining: Remaining, retry_after: float) -> None:
        super().__init__(limit)
        self.limit = limit
        self.remaining = remaining
        self.retry_after = retry_after
