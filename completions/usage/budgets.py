"""What keys and organizations with a budget have spent, told to Redis from SQL where it does not
know: after the first budget was set, and after Redis was emptied."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import redis
from django.conf import settings
from django.db.models import F, Q, QuerySet, Sum

from completions.jobs.connection import connect
from completions.jobs.limits import UnseededError
from completions.jobs.scripts import Scripts
from completions.jobs.settle import EndedJob, unsettled
from completions.models import UsageHour, UsageRecord

_TRIES = 50
"""A job that ends while its scope is counted makes us count again."""


class Spent(NamedTuple):
    """Tokens, and what they cost in billionths."""

    tokens: int
    cost: int

    def plus(self, other: "Spent") -> "Spent":
        return Spent(self.tokens + other.tokens, self.cost + other.cost)


def seed(scope: str) -> None:
    """The same as :func:`seed_from`, of this installation."""
    with connect(settings.REDIS_URL) as client:
        seed_from(client, settings.REDIS_PREFIX, scope)


def seed_from(client: redis.Redis, prefix: str, scope: str) -> None:
    """Let Redis count from what was spent so far. Raises UnseededError, RedisError."""
    scripts = Scripts(client, prefix)
    for _ in range(_TRIES):
        seconds, _micros = client.time()
        now = datetime.fromtimestamp(seconds, UTC)
        last, ended = unsettled(client, prefix)
        today, month = _spent(scope, now, ended)
        periods = [seconds // 86400, (now.year - 1970) * 12 + now.month - 1]
        sums = [today.tokens, month.tokens, today.cost, month.cost]
        if scripts.call("seed", [scope, last, *periods, *sums]):
            return
    raise UnseededError(scope)


def _spent(scope: str, now: datetime, ended: Sequence[EndedJob]) -> tuple[Spent, Spent]:
    """What a scope has spent today and this month, by SQL and jobs that SQL may not have yet."""
    owner, owner_id = "api_key_id" if scope[0] == "k" else "organization_id", int(scope[1:])
    own = [job for job in ended if getattr(job, owner) == owner_id]
    owned = Q(**{owner: owner_id})
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    while True:
        known = _known(own)
        sums = [
            _in_sql(UsageHour.objects.filter(owned, hour__gte=begin))
            for begin in (midnight, midnight.replace(day=1))
        ]
        if _known(own) == known:  # else they were settled while their sum was read
            break
    for job in own:
        finished = datetime.fromtimestamp(job.finished, UTC)
        if job.id not in known:
            used = _used(job)
            sums = [
                spent.plus(used) if finished >= begin else spent
                for spent, begin in zip(sums, (midnight, midnight.replace(day=1)), strict=True)
            ]
    return sums[0], sums[1]


def _known(ended: Sequence[EndedJob]) -> set[str]:
    """Ids of the jobs whose usage SQL has."""
    ids = [job.id for job in ended]
    return set(UsageRecord.objects.filter(job_id__in=ids).values_list("job_id", flat=True))


def _in_sql(hours: QuerySet[UsageHour]) -> Spent:
    tokens = Sum(F("prompt_tokens") + F("completion_tokens"))
    sums = hours.order_by().aggregate(tokens=tokens, cost=Sum("cost_nanos"))
    return Spent(sums["tokens"] or 0, sums["cost"] or 0)


def _used(job: EndedJob) -> Spent:
    tokens = job.usage.prompt_tokens + job.usage.completion_tokens if job.usage else 0
    return Spent(tokens, job.cost)
