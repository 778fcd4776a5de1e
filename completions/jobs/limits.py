"""Bounds of the queue, limits of API keys and what is left of them; `lua/shared/` keeps count."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MINUTE = 60.0

# The queue ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that may be open when a job is submitted, the job included. Bytes are those of
    requests and contexts as JSON."""

    jobs: int = sys.maxsize
    jobs_of_class: int = sys.maxsize
    """Of the job's class: interactive or background."""
    jobs_of_key: int = sys.maxsize
    """Of its API key. Lines of batches do not count."""
    bytes: int = sys.maxsize
    bytes_of_class: int = sys.maxsize
    bytes_of_organization: int = sys.maxsize
    bytes_of_key: int = sys.maxsize


UNBOUNDED = Bounds()


@dataclass(frozen=True, slots=True)
class ByteBounds:
    """Bounds of what the requests and contexts of open jobs hold in Redis, in bytes."""

    total: int
    of_class: int
    """Of blocking requests and streams, and of background jobs, so that neither fills the queue."""
    of_lines: int
    """Of lines of batches, which wait in SQL until there is room."""
    of_organization: int
    of_key: int

    @classmethod
    def derive(cls, memory_limit: int, total: int = 0, of_key: int = 0) -> "ByteBounds":
        """Derive the bounds for a Redis with `memory_limit` bytes, its maxmemory; 0 for no limit. A
        `total` or a bound `of_key` of 0 is a share of what it belongs to."""
        total = total or int((memory_limit or ASSUMED_MEMORY) * MEMORY_SHARE)
        of_key = of_key or int(total * KEY_SHARE)
        return cls(total, int(total * CLASS_SHARE), int(total * LINES_SHARE), 2 * of_key, of_key)


MEMORY_SHARE = 0.5
"""The share of maxmemory for requests. The rest is for results, and for jobs to end."""
ASSUMED_MEMORY = 4 * 1024**3
"""Bytes of a Redis without maxmemory."""
KEY_SHARE = 1 / 8
CLASS_SHARE = 3 / 4
LINES_SHARE = 1 / 4


class QueueFullError(Exception):
    """Too many jobs are open, or too many bytes; the client should come back later."""


class KeyQueueFullError(QueueFullError):
    """Too many jobs of the same API key are open."""


@dataclass(eq=False)
class BytesFullError(QueueFullError):
    """The open jobs of the same API key or organization hold too many bytes for one more."""

    of_organization: bool
    held: int


# API keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Budget:
    """The most tokens and the highest cost per day and month (UTC); None is unlimited. Costs in
    billionths."""

    daily_tokens: int | None = None
    monthly_tokens: int | None = None
    daily_cost: int | None = None
    monthly_cost: int | None = None

    def as_list(self) -> list[int]:
        """Return the amounts in the form that the scripts read."""
        amounts = (self.daily_tokens, self.monthly_tokens, self.daily_cost, self.monthly_cost)
        return [-1 if amount is None else amount for amount in amounts]


UNBUDGETED = Budget()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one API key."""

    rates: Mapping[str, int] = field(default_factory=dict)
    """By the names of RATES (`contract/limits.py`), without those that are unlimited."""
    max_concurrency: int | None = None
    """Blocking requests, streams and background jobs at a time; lines of batches do not count."""
    budget: Budget = UNBUDGETED
    organization_budget: Budget = UNBUDGETED
    """Shared by all keys of the organization."""

    def without_rates(self) -> "Limits":
        """Return the limits of jobs that can wait: rates do not apply to them."""
        return replace(self, rates={})


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left in a bucket that holds `limit` and refills `limit` per minute."""

    limit: int
    remaining: int

    @property
    def seconds_to_full(self) -> float:
        return (self.limit - self.remaining) * MINUTE / self.limit


Remaining = dict[str, Allowance]
"""What a key has left of each of its rates."""


@dataclass(eq=False)
class LimitReachedError(Exception):
    """The key has reached a limit; the job fits in `retry_after` seconds."""

    limit: str
    """A name of LIMITS."""
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


@dataclass(frozen=True, slots=True)
class LimitsUsed:
    """How much of its limits an API key uses at this moment."""

    rates: Mapping[str, float]
    """What is missing in the buckets of its rates, by their names."""
    concurrency: int
