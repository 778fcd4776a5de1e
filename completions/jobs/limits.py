"""Limits of API keys and what is left of them; `lua/shared/` keeps count."""

from dataclasses import dataclass, replace
from typing import Literal

MINUTE = 60.0

LimitName = Literal["requests", "tokens", "concurrency"]


@dataclass(frozen=True, slots=True)
class Budget:
    """The most tokens and the highest cost per day and month (UTC); None is unlimited. Costs in
    billionths."""

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
        """The limits of jobs that can wait: budgets apply to them, rates do not."""
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
        limited = (limits.requests_per_minute, requests), (limits.tokens_per_minute, tokens)
        return cls(
            *(Allowance(most, max(0, int(left))) if most else None for most, left in limited)
        )


@dataclass(eq=False)
class LimitReachedError(Exception):
    """The key has reached a limit; the job fits in `retry_after` seconds."""

    limit: LimitName
    remaining: Remaining
    retry_after: float


@dataclass(eq=False)
class BudgetReachedError(Exception):
    """The budget of the key or its organization is too small for this job."""

    of_organization: bool
    name: str
    """The field of Budget."""
    used: int
    """What is spent, and reserved by jobs that have not ended."""


@dataclass(eq=False)
class UnseededError(Exception):
    """Redis does not know how much a scope has spent."""

    scope: str
    """`k` and an API key's id, or `o` and an organization's id."""
