"""Limits of API keys and what is left of them; `limits.lua` and `budgets.lua` keep count."""

from dataclasses import dataclass, replace
from typing import Literal

MINUTE = 60.0

LimitName = Literal["requests", "tokens", "concurrency"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Most tokens and cost per day and month of UTC; None is unlimited. Costs in billionths."""

    daily_tokens: int | None = None
    monthly_tokens: int | None = None
    daily_cost: int | None = None
    monthly_cost: int | None = None

    def as_list(self) -> list[int]:
        """The form that the scripts read."""
        amounts = (self.daily_tokens, self.monthly_tokens, self.daily_cost, self.monthly_cost)
        return [-1 if amount is None else amount for amount in amounts]


UNBUDGETED = Budget()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one API key; None is unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    """Calls and streams at a time; background jobs do not count."""
    budget: Budget = UNBUDGETED
    organization_budget: Budget = UNBUDGETED
    """Shared by all keys of the organization."""

    def only_budgets(self) -> "Limits":
        """The limits of jobs that can wait: they spend, but have no rate."""
        return replace(UNLIMITED, budget=self.budget, organization_budget=self.organization_budget)


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left in a bucket that holds `limit` and refills `limit` per minute."""

    limit: int
    remaining: int

    @property
    def seconds_to_full(self) -> float:
        return (self.limit - self.remaining) * MINUTE / self.limit


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a key has left of each limit; None if it has no such limit."""

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
    """The key has reached a limit; the job fits in `retry_after` seconds."""

    def __init__(self, limit: LimitName, remaining: Remaining, retry_after: float) -> None:
        super().__init__(limit)
        self.limit = limit
        self.remaining = remaining
        self.retry_after = retry_after


class BudgetReachedError(Exception):
    """The budget of the key or its organization is too small for this job."""

    def __init__(self, of_organization: bool, name: str, used: int) -> None:
        super().__init__(name)
        self.of_organization = of_organization
        self.name = name
        """The field of Budget."""
        self.used = used
        """What is spent, and held by jobs that have not ended."""


class UnseededError(Exception):
    """Redis does not know what a scope has spent. A scope is `k` and an API key's id, or `o` and an
    organization's id."""

    def __init__(self, scope: str) -> None:
        super().__init__(scope)
        self.scope = scope
