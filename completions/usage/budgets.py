"""Loads the spending of keys and organizations from SQL into Redis, which checks budgets.

Redis lacks it after a scope's first budget is set, and after Redis is emptied.
"""

import operator
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from django.conf import settings
from django.db.models import F, Q, Sum

from completions.jobs.connection import connect
from completions.jobs.ended import EndedJob, read_unsettled
from completions.jobs.limits import UnseededError
from completions.jobs.sharding.shards import Layout
from completions.jobs.store import JobStore, SyncStore
from completions.models import UsageHour, UsageRecord

_TRIES = 50
"""Attempts to count: a job that ends meanwhile makes the count stale."""


class Spent(NamedTuple):
    """What a key or an organization has spent in this day and this month (UTC), in the order of
    Budget; costs in billionths of the currency."""

    daily_tokens: int = 0
    monthly_tokens: int = 0
    daily_cost: int = 0
    monthly_cost: int = 0

    def plus(self, job: EndedJob, now: datetime) -> "Spent":
        tokens = job.usage.prompt_tokens + job.usage.completion_tokens if job.usage else 0
        finished = datetime.fromtimestamp(job.finished, UTC)
        day = finished >= _midnight(now)
        month = finished >= _midnight(now).replace(day=1)
        added = tokens * day, tokens * month, job.cost * day, job.cost * month
        return Spent(*map(operator.add, self, added))


def seed(scope: str, organization_id: int) -> None:
    """Call `seed_store` with the shard of the organization whose scope it is."""
    address = Layout.read(settings).find(organization_id)
    with connect(address.url) as client:
        seed_store(JobStore(client, address.prefix), scope)


def seed_store(store: SyncStore, scope: str) -> None:
    """Store in Redis what the scope has spent today and this month (UTC).

    `scope` is `k` and a key id, or `o` and an organization id. Raises UnseededError if jobs keep
    ending meanwhile, and RedisError.
    """
    for _ in range(_TRIES):
        seconds, _micros = store.client.time()
        now = datetime.fromtimestamp(seconds, UTC)
        last, ended = read_unsettled(store)
        periods = [seconds // 86400, (now.year - 1970) * 12 + now.month - 1]
        if store.call("seed", scope, last, *periods, *_sum_all_spent(scope, now, ended)):
            return
    raise UnseededError(scope)


def _sum_all_spent(scope: str, now: datetime, ended: Sequence[EndedJob]) -> Spent:
    """Add up what SQL knows and the ended jobs that SQL may not know yet."""
    owner, owner_id = "api_key_id" if scope[0] == "k" else "organization_id", int(scope[1:])
    own = [job for job in ended if getattr(job, owner) == owner_id]
    while True:
        recorded = _find_recorded(own)
        spent = sum_spent(owner, [owner_id], now)[owner_id]
        if _find_recorded(own) == recorded:  # otherwise jobs were settled during the query
            break
    for job in own:
        if job.id not in recorded:
            spent = spent.plus(job, now)
    return spent


def sum_spent(owner: str, ids: Collection[int], now: datetime) -> dict[int, Spent]:
    """Sum what SQL knows of the spending of some keys or organizations, by their ids. `owner` is
    the column, api_key_id or organization_id."""
    midnight = _midnight(now)
    hours = UsageHour.objects.filter(**{f"{owner}__in": ids}, hour__gte=midnight.replace(day=1))
    today = Q(hour__gte=midnight)
    tokens = F("prompt_tokens") + F("completion_tokens")
    rows = (
        hours.order_by()
        .values(owner)
        .annotate(
            daily_tokens=Sum(tokens, filter=today),
            monthly_tokens=Sum(tokens),
            daily_cost=Sum("cost_nanos", filter=today),
            monthly_cost=Sum("cost_nanos"),
        )
    )
    sums = {row[owner]: Spent(*(row[name] or 0 for name in Spent._fields)) for row in rows}
    return {each: sums.get(each, Spent()) for each in ids}


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _find_recorded(ended: Sequence[EndedJob]) -> set[str]:
    ids = [job.id for job in ended]
    return set(UsageRecord.objects.filter(job_id__in=ids).values_list("job_id", flat=True))
