"""What keys and organizations with a budget have spent, told to Redis from SQL where it does not
know: after the first budget was set, and after Redis was emptied."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, cast

import orjson
import redis
from django.conf import settings
from django.db.models import F, Q, QuerySet, Sum
from redis.exceptions import ResponseError

from completions.jobs.connection import Entries, connect
from completions.jobs.limits import UnseededError
from completions.jobs.scripts import Scripts
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
        last, entries = _unsettled(client, prefix)
        today, month = _spent(scope, now, entries)
        periods = [seconds // 86400, (now.year - 1970) * 12 + now.month - 1]
        sums = [today.tokens, month.tokens, today.cost, month.cost]
        if scripts.call("seed", [scope, last, *periods, *sums]):
            return
    raise UnseededError(scope)


def _unsettled(client: redis.Redis, prefix: str) -> tuple[str, list[dict[str, str]]]:
    """The newest entry that the usage stream ever had, and those that SQL may not know yet."""
    try:
        facts = client.xinfo_stream(f"{prefix}usage")
    except ResponseError:  # there is no such stream yet
        return "0-0", []
    entries = cast("Entries", client.xrange(f"{prefix}usage"))
    found = [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in entries]
    return facts["last-generated-id"].decode(), found


def _spent(scope: str, now: datetime, entries: Sequence[dict[str, str]]) -> tuple[Spent, Spent]:
    """Of the day and of the month so far."""
    name = "key" if scope[0] == "k" else "organization"
    own = [entry for entry in entries if entry[name] == scope[1:]]
    owned = Q(**{f"{'api_key' if scope[0] == 'k' else 'organization'}_id": int(scope[1:])})
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    while True:
        known = _known(own)
        sums = [
            _in_sql(UsageHour.objects.filter(owned, hour__gte=begin))
            for begin in (midnight, midnight.replace(day=1))
        ]
        if _known(own) == known:  # else they were settled while their sum was read
            break
    for entry in own:
        finished = datetime.fromtimestamp(float(entry["finished"]), UTC)
        if entry["id"] not in known:
            used = _of_entry(entry)
            sums = [
                spent.plus(used) if finished >= begin else spent
                for spent, begin in zip(sums, (midnight, midnight.replace(day=1)), strict=True)
            ]
    return sums[0], sums[1]


def _known(entries: Sequence[dict[str, str]]) -> set[str]:
    """Ids of the jobs whose usage SQL has."""
    ids = [entry["id"] for entry in entries]
    return set(UsageRecord.objects.filter(job_id__in=ids).values_list("job_id", flat=True))


def _in_sql(hours: QuerySet[UsageHour]) -> Spent:
    tokens = Sum(F("prompt_tokens") + F("completion_tokens"))
    sums = hours.order_by().aggregate(tokens=tokens, cost=Sum("cost_nanos"))
    return Spent(sums["tokens"] or 0, sums["cost"] or 0)


def _of_entry(entry: dict[str, str]) -> Spent:
    usage = orjson.loads(entry["usage"]) if entry["usage"] else {}
    tokens = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    return Spent(tokens, int(entry.get("cost", 0)))
