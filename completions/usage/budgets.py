"""Loads the spending of keys and organizations from SQL into Redis, which checks budgets.

Redis lacks it after a scope's first budget is set, and after Redis is emptied.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from django.conf import settings
from django.db.models import F, Q, QuerySet, Sum

from completions.jobs.connection import connect
from completions.jobs.limits import UnseededError
from completions.jobs.settle import EndedJob, unsettled
from completions.jobs.store import JobStore, SyncStore
from completions.models import UsageHour, UsageRecord

_TRIES = 50
"""Attempts to count: a job that ends meanwhile makes the count stale."""


class Spent(NamedTuple):
    """Tokens, and their cost in billionths of the currency."""

    tokens: int
    cost: int

    def plus(self, job: EndedJob) -> "Spent":
        tokens = job.usage.prompt_tokens + job.usage.completion_tokens if job.usage else 0
        return Spent(self.tokens + tokens, self.cost + job.cost)


def seed(scope: str) -> None:
    """Call `seed_from` with this installation's Redis."""
    with connect(settings.REDIS_URL) as client:
        seed_from(JobStore(client, settings.REDIS_PREFIX), scope)


def seed_from(store: SyncStore, scope: str) -> None:
    """Store in Redis what the scope has spent today and this month (UTC).

    `scope` is `k` and a key id, or `o` and an organization id. Raises UnseededError if jobs keep
    ending meanwhile, and RedisError.
    """
    for _ in range(_TRIES):
        seconds, _micros = store.client.time()
        now = datetime.fromtimestamp(seconds, UTC)
        last, ended = unsettled(store)
        today, month = _spent(scope, now, ended)
        periods = [seconds // 86400, (now.year - 1970) * 12 + now.month - 1]
        sums = [today.tokens, month.tokens, today.cost, month.cost]
        if store.call("seed", scope, last, *periods, *sums):
            return
    raise UnseededError(scope)


def _spent(scope: str, now: datetime, ended: Sequence[EndedJob]) -> tuple[Spent, Spent]:
    """Add up what SQL knows and the ended jobs that SQL may not know yet."""
    owner, owner_id = "api_key_id" if scope[0] == "k" else "organization_id", int(scope[1:])
    own = [job for job in ended if getattr(job, owner) == owner_id]
    owned = Q(**{owner: owner_id})
    while True:
        known = _known(own)
        today, month = spent_in_sql(owned, now)
        if _known(own) == known:  # otherwise jobs were settled during the query
            break
    for job in own:
        if job.id in known:
            continue
        finished = datetime.fromtimestamp(job.finished, UTC)
        if finished >= _midnight(now):
            today = today.plus(job)
        if finished >= _midnight(now).replace(day=1):
            month = month.plus(job)
    return today, month


def spent_by(owner: str, ids: Collection[int], now: datetime) -> dict[int, tuple[Spent, Spent]]:
    """As `spent_in_sql` for many at once. `owner` is the column, api_key_id or organization_id."""
    midnight = _midnight(now)
    hours = UsageHour.objects.filter(**{f"{owner}__in": ids}, hour__gte=midnight.replace(day=1))
    today = Q(hour__gte=midnight)
    tokens = F("prompt_tokens") + F("completion_tokens")
    rows = hours.order_by().values(owner).annotate(
        day_tokens=Sum(tokens, filter=today), day_cost=Sum("cost_nanos", filter=today),
        month_tokens=Sum(tokens), month_cost=Sum("cost_nanos"),
    )  # fmt: skip
    return {
        row[owner]: (
            Spent(row["day_tokens"] or 0, row["day_cost"] or 0),
            Spent(row["month_tokens"] or 0, row["month_cost"] or 0),
        )
        for row in rows
    }


def spent_in_sql(owned: Q, now: datetime) -> tuple[Spent, Spent]:
    """Return what SQL knows of the spending of the day and of the month so far (UTC)."""
    hours = UsageHour.objects.filter(owned)
    midnight = _midnight(now)
    return (
        _sum(hours.filter(hour__gte=midnight)),
        _sum(hours.filter(hour__gte=midnight.replace(day=1))),
    )


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _known(ended: Sequence[EndedJob]) -> set[str]:
    ids = [job.id for job in ended]
    return set(UsageRecord.objects.filter(job_id__in=ids).values_list("job_id", flat=True))


def _sum(hours: QuerySet[UsageHour]) -> Spent:
    tokens = Sum(F("prompt_tokens") + F("completion_tokens"))
    sums = hours.order_by().aggregate(tokens=tokens, cost=Sum("cost_nanos"))
    return Spent(sums["tokens"] or 0, sums["cost"] or 0)
