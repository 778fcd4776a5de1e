"""The dashboard's figures from SQL: totals, series and rankings of a period.

An hour is read from the records themselves; longer periods from the hourly sums, which outlive the
records.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import CharField, Count, F, Q, Sum
from django.db.models.functions import Cast, Coalesce, Left

from completions.models import LoadSample, UsageHour, UsageRecord
from completions.models.usage import BOUNDS_MS, FIRST_TOKEN, LATENCY
from completions.usage import histograms

SUMMED = (
    "requests", "failed", "cancelled", "prompt_tokens", "cached_tokens", "completion_tokens",
    "forced_tokens", "cost_nanos",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Period:
    """What the dashboard looks at: `count` buckets of `step`, the last of which has not ended."""

    name: str
    title: str
    step: timedelta
    count: int

    def start(self, now: datetime) -> datetime:
        """The first bucket's beginning."""
        return self.floor(now) - (self.count - 1) * self.step

    def floor(self, moment: datetime) -> datetime:
        """The beginning of the bucket that a moment is in."""
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight + (moment - midnight) // self.step * self.step

    def buckets(self, now: datetime) -> list[datetime]:
        """The beginnings of all of them."""
        return [self.start(now) + i * self.step for i in range(self.count)]

    def label(self, bucket: datetime) -> str:
        return f"{bucket:%b %-d}" if self.step >= timedelta(days=1) else f"{bucket:%H:%M}"


HOUR = Period("1h", "1 hour", timedelta(minutes=5), 12)
DAY = Period("24h", "24 hours", timedelta(hours=1), 24)
MONTH = Period("30d", "30 days", timedelta(days=1), 30)
PERIODS = {period.name: period for period in (HOUR, DAY, MONTH)}

Sums = Mapping[str, Any]
"""The columns of SUMMED, LATENCY and FIRST_TOKEN."""
NOTHING: Sums = dict.fromkeys((*SUMMED, *LATENCY, *FIRST_TOKEN), 0)


def quantile(sums: Sums, columns: Sequence[str], share: float) -> float | None:
    """Milliseconds within which `share` of a histogram's requests lies; None of nothing."""
    return histograms.quantile([sums[column] or 0 for column in columns], share)


def series(period: Period, now: datetime) -> list[Sums]:
    """The sums of each bucket."""
    found = _by_bucket(period, map(_named, _rows(period, now)))
    return [total(found[bucket]) for bucket in period.buckets(now)]


def total(series: Sequence[Sums]) -> Sums:
    """Everything added up."""
    return {name: sum(sums[name] or 0 for sums in series) for name in NOTHING}


def before(period: Period, now: datetime) -> Sums:
    """The totals of as long a time before the period, without histograms."""
    start = period.start(now)
    span = {"gte": start - (now - start), "lt": start}
    if period is HOUR:
        records = UsageRecord.objects.filter(**_within("finished_at", span))
        return _named(records.aggregate(**_record_sums()))
    hours = UsageHour.objects.filter(**_within("hour", span))
    return _named(hours.aggregate(**_hour_sums(SUMMED)))


def ranked(period: Period, now: datetime, *by: str, most: int = 6) -> list[dict[str, Any]]:
    """Who used most tokens: rows of the columns `by` with their sums."""
    span = {"gte": period.start(now)}
    rows: Any
    if period is HOUR:
        rows = UsageRecord.objects.filter(**_within("finished_at", span))
        sums = _record_sums()
    else:
        rows = UsageHour.objects.filter(**_within("hour", span))
        sums = _hour_sums(SUMMED)
    # As an expression: for a bare column SQLite would read all records in its index's order.
    texts = {f"by_{name}": Cast(name, CharField()) for name in by}
    found = [_named(row) for row in rows.order_by().values(**texts).annotate(**sums)]
    for row in found:
        row["tokens"] = row["prompt_tokens"] + row["completion_tokens"]
        row |= {name: _read(name, row.pop(f"by_{name}")) for name in by}
    return sorted(found, key=lambda row: -row["tokens"])[:most]


def _read(column: str, text: str) -> Any:
    return int(text) if column.endswith("_id") else text


def failures(period: Period, now: datetime, most: int = 6) -> list[dict[str, Any]]:
    """Error codes of the period's last FAILURES_READ failures with their numbers and the last
    request of each."""
    failed = UsageRecord.objects.filter(status="failed", finished_at__gte=period.start(now))
    recent = failed.order_by("-finished_at").values_list("error_code", "id")[:FAILURES_READ]
    counts: Counter[str] = Counter()
    last: dict[str, int] = {}
    for code, record_id in recent:
        counts[code] += 1
        last.setdefault(code, record_id)
    return [{"error_code": c, "count": n, "last_id": last[c]} for c, n in counts.most_common(most)]


FAILURES_READ = 2_000


def load(period: Period, now: datetime) -> list[dict[str, float] | None]:
    """Of each bucket the means over time of what all models' workers did; None where nobody
    looked."""
    names = ("slots", "running", "queued_interactive", "queued_background", "queued_batch")
    rows = (
        LoadSample.objects.filter(at__gte=period.start(now))
        .order_by()
        .values("model", bucket=_prefix(period, "at"))
        .annotate(samples=Count("id"), **{f"{n}_sum": Sum(n) for n in names})
    )
    found = _by_bucket(period, rows)
    return [_mean(found[bucket], names) for bucket in period.buckets(now)]


def _mean(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float] | None:
    """Over time for each model, added up over the models."""
    if not rows:
        return None
    samples: Counter[str] = Counter()
    for row in rows:
        samples[row["model"]] += row["samples"]
    return {name: sum(row[f"{name}_sum"] / samples[row["model"]] for row in rows) for name in names}


def _by_bucket(
    period: Period, rows: Iterable[Mapping[str, Any]]
) -> defaultdict[datetime, list[Mapping[str, Any]]]:
    """SQL cuts by the minute, the hour or the day; a bucket may be several of them."""
    found: defaultdict[datetime, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        moment = datetime.fromisoformat(row["bucket"]).replace(tzinfo=UTC)
        found[period.floor(moment)].append(row)
    return found


def _rows(period: Period, now: datetime) -> Any:
    if period is HOUR:
        records = UsageRecord.objects.filter(finished_at__gte=period.start(now)).order_by()
        timed = records.annotate(latency=F("queued_ms") + F("run_ms"))
        buckets = timed.values(bucket=_prefix(period, "finished_at"))
        return buckets.annotate(**_record_sums(), **_record_histograms())
    hours = UsageHour.objects.filter(hour__gte=period.start(now)).order_by()
    of_hours = hours.values(bucket=_prefix(period, "hour"))
    return of_hours.annotate(**_hour_sums((*SUMMED, *LATENCY, *FIRST_TOKEN)))


def _prefix(period: Period, column: str) -> Any:
    """The day, hour or minute of a moment (UTC) as text, `2026-11-20 15:30` cut short. Django's
    Trunc is a Python function on SQLite, called for every row."""
    day = period.step >= timedelta(days=1)
    length = len("2026-11-20") if day else len("2026-11-20 15:30")
    return Left(Cast(column, CharField()), length)


def _within(column: str, span: Mapping[str, datetime]) -> dict[str, datetime]:
    return {f"{column}__{lookup}": moment for lookup, moment in span.items()}


_PREFIX = "sum_"
"""Django refuses an aggregate that is called as a column."""


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_PREFIX): value for name, value in row.items()}


def _hour_sums(names: Sequence[str]) -> dict[str, Any]:
    return {f"{_PREFIX}{name}": Coalesce(Sum(name), 0) for name in names}


def _record_sums() -> dict[str, Any]:
    counts = {
        "requests": Count("id"),
        "failed": Count("id", filter=Q(status="failed")),
        "cancelled": Count("id", filter=Q(status="cancelled")),
    }
    sums = {name: Coalesce(Sum(name), 0) for name in SUMMED if name not in counts}
    return {f"{_PREFIX}{name}": value for name, value in (counts | sums).items()}


def _record_histograms() -> dict[str, Any]:
    """As UsageHour has them: of what was completed, less lines of batches, for which nobody
    waits."""
    counted = Q(status="completed") & ~Q(kind="batch")
    counts = {}
    for columns, value in ((LATENCY, "latency"), (FIRST_TOKEN, "first_token_ms")):
        lower = -1
        for column, upper in zip(columns, (*BOUNDS_MS, None), strict=True):
            inside = Q(**{f"{value}__gt": lower}) & counted
            if upper is not None:
                inside &= Q(**{f"{value}__lte": upper})
                lower = upper
            counts[f"{_PREFIX}{column}"] = Count("id", filter=inside)
    return counts


def daily_tokens(key_ids: Sequence[int], now: datetime) -> dict[int, list[int]]:
    """Tokens of each key in each day of the last month."""
    days = {f"{day:%Y-%m-%d}": i for i, day in enumerate(MONTH.buckets(now))}
    found = {key_id: [0] * len(days) for key_id in key_ids}
    hours = UsageHour.objects.filter(api_key_id__in=key_ids, hour__gte=MONTH.start(now))
    rows = (
        hours.order_by()
        .values("api_key_id", bucket=_prefix(MONTH, "hour"))
        .annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
    )
    for row in rows:
        found[row["api_key_id"]][days[row["bucket"]]] = row["tokens"]
    return found


def spent(key_id: int, now: datetime) -> tuple[dict[str, int], dict[str, int]]:
    """`tokens` and `cost_nanos` of a key, today and this month."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)

    def since(start: datetime) -> dict[str, int]:
        hours = UsageHour.objects.filter(api_key_id=key_id, hour__gte=start)
        return hours.aggregate(
            tokens=Coalesce(Sum(F("prompt_tokens") + F("completion_tokens")), 0),
            cost_nanos=Coalesce(Sum("cost_nanos"), 0),
        )

    return since(today), since(today.replace(day=1))


def by_model(period: Period, now: datetime) -> dict[str, dict[str, Any]]:
    """The sums of each model, its adapters included."""
    return {row["model"]: row for row in ranked(period, now, "model", most=1000)}


def by_organization(period: Period, now: datetime) -> dict[int, dict[str, Any]]:
    """The sums of each organization."""
    rows = ranked(period, now, "organization_id", most=10_000)
    return {row["organization_id"]: row for row in rows}
