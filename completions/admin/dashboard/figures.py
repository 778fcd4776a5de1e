"""The dashboard's figures from SQL: totals, series and rankings of a period.

The last hour is read from the records; longer periods are read from the hourly sums.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import CharField, Count, F, Q, QuerySet, Sum
from django.db.models.functions import Cast, Coalesce

from completions.admin.dashboard.hourly_sums import (
    DAYS,
    MINUTES,
    PREFIX,
    Sums,
    cut_time,
    make_hour_sums,
    rename_sums,
)
from completions.models import LoadSample, UsageHour, UsageRecord
from completions.models.usage import BOUNDS_MS, COUNTED, FIRST_TOKEN, LATENCY, LATENCY_MS, SUMMED


@dataclass(frozen=True, slots=True)
class Period:
    """`count` buckets of length `step`. The last bucket contains the present."""

    name: str
    title: str
    step: timedelta
    count: int

    def start(self, now: datetime) -> datetime:
        return self.round_down(now) - (self.count - 1) * self.step

    def round_down(self, moment: datetime) -> datetime:
        """Return the start of the bucket that contains the moment."""
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight + (moment - midnight) // self.step * self.step

    def list_buckets(self, now: datetime) -> list[datetime]:
        return [self.start(now) + i * self.step for i in range(self.count)]

    def format_bucket(self, bucket: datetime) -> str:
        return f"{bucket:%b %-d}" if self.step >= timedelta(days=1) else f"{bucket:%H:%M}"


HOUR = Period("1h", "1 hour", timedelta(minutes=5), 12)
DAY = Period("24h", "24 hours", timedelta(hours=1), 24)
MONTH = Period("30d", "30 days", timedelta(days=1), 30)
PERIODS = {period.name: period for period in (HOUR, DAY, MONTH)}

NOTHING: Sums = dict.fromkeys(COUNTED, 0)


def load_series(period: Period, now: datetime) -> list[Sums]:
    buckets = _group_by_bucket(period, map(rename_sums, _load_rows(period, now)))
    return [add_up(buckets[bucket]) for bucket in period.list_buckets(now)]


def add_up(series: Sequence[Sums]) -> Sums:
    return {name: sum(sums[name] or 0 for sums in series) for name in NOTHING}


def sum_before(period: Period, now: datetime) -> Sums:
    """Return the sums of the period before this one, without histograms."""
    start = period.start(now)
    rows, sums = _select_ended(period, gte=start - (now - start), lt=start)
    return rename_sums(rows.aggregate(**sums))


def rank(period: Period, now: datetime, *by: str, limit: int = 6) -> list[dict[str, Any]]:
    """Return the groups with the most tokens: rows of the columns `by` with their sums."""
    rows, sums = _select_ended(period, gte=period.start(now))
    # Cast, because grouping by a bare column makes SQLite scan all records in its index's order.
    texts = {f"by_{name}": Cast(name, CharField()) for name in by}
    results = [rename_sums(row) for row in rows.order_by().values(**texts).annotate(**sums)]
    for row in results:
        row["tokens"] = row["prompt_tokens"] + row["completion_tokens"]
        for name in by:
            text = row.pop(f"by_{name}")
            row[name] = int(text) if name.endswith("_id") else text
    return sorted(results, key=lambda row: -row["tokens"])[:limit]


def count_failures(period: Period, now: datetime) -> list[dict[str, Any]]:
    """Count the most frequent error codes among the period's last FAILURES_READ failures.

    Each row has `error_code`, `count` and `last_id`, the newest record with that code.
    """
    failed = UsageRecord.objects.filter(status="failed", finished_at__gte=period.start(now))
    recent = failed.order_by("-finished_at").values_list("error_code", "id")[:FAILURES_READ]
    counts: Counter[str] = Counter()
    last: dict[str, int] = {}
    for code, record_id in recent:
        counts[code] += 1
        last.setdefault(code, record_id)
    return [{"error_code": c, "count": n, "last_id": last[c]} for c, n in counts.most_common(6)]


FAILURES_READ = 2_000


def load_samples(period: Period, now: datetime) -> list[dict[str, float] | None]:
    """Return the mean load of all models' workers per bucket; None for a bucket without samples."""
    names = ("slots", "running", "queued_interactive", "queued_background", "queued_batch")
    rows = (
        LoadSample.objects.filter(at__gte=period.start(now))
        .order_by()
        .values("model", bucket=_filter_period(period, "at"))
        .annotate(samples=Count("id"), **{f"{n}_sum": Sum(n) for n in names})
    )
    buckets = _group_by_bucket(period, rows)
    return [_compute_mean(buckets[bucket], names) for bucket in period.list_buckets(now)]


def _compute_mean(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, float] | None:
    """Average over time for each model, then sum over the models."""
    if not rows:
        return None
    samples: Counter[str] = Counter()
    for row in rows:
        samples[row["model"]] += row["samples"]
    return {name: sum(row[f"{name}_sum"] / samples[row["model"]] for row in rows) for name in names}


def _group_by_bucket(
    period: Period, rows: Iterable[Mapping[str, Any]]
) -> defaultdict[datetime, list[Mapping[str, object]]]:
    """Group rows by bucket. SQL groups by minute, hour or day; a bucket may span several."""
    buckets: defaultdict[datetime, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        moment = datetime.fromisoformat(row["bucket"]).replace(tzinfo=UTC)
        buckets[period.round_down(moment)].append(row)
    return buckets


def _load_rows(period: Period, now: datetime) -> Any:
    if period is HOUR:
        records = UsageRecord.objects.filter(finished_at__gte=period.start(now)).order_by()
        timed = records.annotate(latency=LATENCY_MS)
        buckets = timed.values(bucket=_filter_period(period, "finished_at"))
        return buckets.annotate(**_make_record_sums(), **_make_record_histograms())
    hours = UsageHour.objects.filter(hour__gte=period.start(now)).order_by()
    of_hours = hours.values(bucket=_filter_period(period, "hour"))
    return of_hours.annotate(**make_hour_sums(COUNTED))


def _filter_period(period: Period, column: str) -> Any:
    return cut_time(column, DAYS if period.step >= timedelta(days=1) else MINUTES)


def _select_ended(period: Period, **span: datetime) -> tuple[QuerySet[Any], dict[str, Any]]:
    """Return the rows of a time span, given by field lookups, and the sums to take over them."""
    rows: QuerySet[Any]
    if period is HOUR:
        rows, column, sums = UsageRecord.objects.all(), "finished_at", _make_record_sums()
    else:
        rows, column, sums = UsageHour.objects.all(), "hour", make_hour_sums(SUMMED)
    return rows.filter(**{f"{column}__{name}": at for name, at in span.items()}), sums


def _make_record_sums() -> dict[str, object]:
    counts = {
        "requests": Count("id"),
        "failed": Count("id", filter=Q(status="failed")),
        "cancelled": Count("id", filter=Q(status="cancelled")),
    }
    sums = {name: Coalesce(Sum(name), 0) for name in SUMMED if name not in counts}
    return {f"{PREFIX}{name}": value for name, value in (counts | sums).items()}


def _make_record_histograms() -> dict[str, Any]:
    """Return the histograms of UsageHour, computed from records by the ledger's rules."""
    counted = Q(status="completed") & ~Q(kind="batch")
    counts = {}
    for columns, value in ((LATENCY, "latency"), (FIRST_TOKEN, "first_token_ms")):
        lower = -1
        for column, upper in zip(columns, (*BOUNDS_MS, None), strict=True):
            inside = Q(**{f"{value}__gt": lower}) & counted
            if upper is not None:
                inside &= Q(**{f"{value}__lte": upper})
                lower = upper
            counts[f"{PREFIX}{column}"] = Count("id", filter=inside)
    return counts


def count_daily_tokens(key_ids: Sequence[int], now: datetime) -> dict[int, list[int]]:
    """Return each key's tokens for each of the last 30 days."""
    days = {f"{day:%Y-%m-%d}": i for i, day in enumerate(MONTH.list_buckets(now))}
    tokens = {key_id: [0] * len(days) for key_id in key_ids}
    hours = UsageHour.objects.filter(api_key_id__in=key_ids, hour__gte=MONTH.start(now))
    rows = (
        hours.order_by()
        .values("api_key_id", bucket=_filter_period(MONTH, "hour"))
        .annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
    )
    for row in rows:
        day = days.get(row["bucket"])  # none if Redis's clock, which dates usage, is ahead
        if day is not None:
            tokens[row["api_key_id"]][day] = row["tokens"]
    return tokens


def sum_by_model(period: Period, now: datetime) -> dict[str, dict[str, object]]:
    """Return the sums of each model, including its adapters."""
    return {row["model"]: row for row in rank(period, now, "model", limit=1000)}


def sum_by_organization(period: Period, now: datetime) -> dict[int, dict[str, object]]:
    rows = rank(period, now, "organization_id", limit=10_000)
    return {row["organization_id"]: row for row in rows}
