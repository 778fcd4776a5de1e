"""What an API key may use of the service and what it has left; `limits.lua` and `budgets.lua` keep
count."""

from dataclasses import dataclass, replace
from typing import Literal

MINUTE = 60.0

LimitName = Literal["requests", "tokens", "concurrency"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent in a day and in a month of UTC; None is unlimited. Costs in billionths."""

    daily_tokens: int | None = None
    monthly_tokens: int | None = None
    daily_cost: int | None = None
    monthly_cost: int | None = None

    def as_list(self) -> list[int]:
        """As the scripts take it."""
        amounts = (self.daily_tokens, self.monthly_tokens, self.daily_cost, self.monthly_cost)
        return [-1 if amount is None else amount for amount in amounts]


UNBUDGETED = Budget()


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one API key; None is unlimited. `max_concurrency` counts calls that somebody waits for,
    streams included, not background jobs."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    budget: Budget = UNBUDGETED
    organization_budget: Budget = UNBUDGETED
    """Shared by all keys of the organization."""

    def only_budgets(self) -> "Limits":
        """For what may wait: it spends, but has no rate."""
        return replace(UNLIMITED, budget=self.budget, organization_budget=self.organization_budget)


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


class BudgetReachedError(Exception):
    """The key or its organization has spent too much for this job."""

    def __init__(self, of_organization: bool, name: str, used: int) -> None:
        super().__init__(name)
        self.of_organization = of_organization
        self.name = name
        """Of a field of Budget."""
        self.used = used
        """Spent, and held by jobs that have not ended."""


class UnseededError(Exception):
    """Redis does not know what a scope has spent: `k` and a key's id, or `o` and an
    organization's."""

    def __init__(self, scope: str) -> None:
        super().__init__(scope)
        self.scope = scope
