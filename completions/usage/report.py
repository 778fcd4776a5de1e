"""Usage by time and group, for the API, the admin and CSV."""

import csv
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from itertools import accumulate
from typing import Any, Protocol

from django.db.models import DateTimeField, F, Field, QuerySet, Sum
from django.db.models.functions import Trunc

from completions.models import ApiKey, Organization, Refusal, UsageHour
from completions.models.usage import (
    BOUNDS_MS,
    COUNTED,
    LATENCY,
    NANOS,
    SUMMED,
    USAGE_COUNTS,
)
from completions.spreadsheets import escape_formula

WIDTHS = {"1h": timedelta(hours=1), "1d": timedelta(days=1)}
UNITS = {"1h": "hour", "1d": "day"}
"""What buckets of these widths are called in SQL."""
GROUPS = ("organization_id", "api_key_id", "model", "adapter")
PERCENTILES = {"p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The sums of one group in one bucket."""

    start: datetime
    group: Mapping[str, Any]
    """The values of the columns in GROUPS that define the group."""
    sums: Mapping[str, int]
    """The sums of the columns in COUNTED."""

    @property
    def cost(self) -> Decimal:
        return Decimal(self.sums["cost_nanos"]) / NANOS

    def percentiles(self, columns: Sequence[str]) -> dict[str, float | None]:
        """Return percentiles in milliseconds, by the names in PERCENTILES. `columns` is LATENCY or
        FIRST_TOKEN."""
        return {name: quantile(self.sums, columns, share) for name, share in PERCENTILES.items()}


def quantile(sums: Mapping[str, int], columns: Sequence[str], share: float) -> float | None:
    """Return the quantile in milliseconds, interpolated linearly; None if the histogram is empty.

    Values above the last bound count as that bound.
    """
    return find_quantile([sums[name] for name in columns], share)


def find_quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the same of a histogram's counts."""
    sums = list(accumulate(counts))
    if not sums or not sums[-1]:
        return None
    rank = share * sums[-1]
    index = bisect_left(sums, rank)
    below = sums[index] - counts[index]
    lower = BOUNDS_MS[index - 1] if index else 0
    upper = BOUNDS_MS[index] if index < len(BOUNDS_MS) else lower
    return lower + (upper - lower) * max(0.0, rank - below) / counts[index]


def find_bucket(moment: datetime, width: str) -> datetime:
    """Return the beginning of the bucket that contains a moment (UTC)."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return hour.replace(hour=0) if width == "1d" else hour


def group_rows(
    hours: QuerySet[UsageHour], unit: str, groups: Sequence[str]
) -> QuerySet[UsageHour, dict[str, object]]:
    """Sum hours by bucket and group, ordered by both. `unit` is hour, day, week or month."""
    # Rows are of whole hours. On SQLite, Trunc calls a Python function for every row.
    start = F("hour") if unit == "hour" else Trunc("hour", unit, output_field=DateTimeField())
    split = hours.annotate(start=start).order_by("start", *groups).values("start", *groups)
    sums: QuerySet[UsageHour, dict[str, object]]
    # A field of no type: Django would call a function for each value of each row to make integers.
    plain = {f"sum_{name}": Sum(name, output_field=Field()) for name in COUNTED}
    sums = split.annotate(**plain)
    return sums


def make_row(values: Mapping[str, Any], groups: Sequence[str]) -> UsageRow:
    return UsageRow(
        start=values["start"],
        group={name: values[name] for name in groups},
        sums={name: int(values[f"sum_{name}"]) for name in COUNTED},
    )


# CSV --------------------------------------------------------------------------------------------


class Writer(Protocol):
    def write(self, text: str, /) -> object: ...


_COUNTS = tuple(each.name for each in USAGE_COUNTS)
_NAMES = {
    "organization_id": ("organization",),
    "api_key_id": ("api_key", "api_key_name"),
}
"""The columns of groups whose names are not their own."""
_FIGURES = (
    *_COUNTS,
    "cost",
    "latency_p50_ms",
    "latency_p95_ms",
    "first_token_p50_ms",
    "first_token_p95_ms",
)
_LATENCY_AT = slice(len(SUMMED), len(SUMMED) + len(LATENCY))
_FIRST_TOKEN_AT = slice(_LATENCY_AT.stop, len(COUNTED))
"""Where the columns of COUNTED that are histograms are."""


_REFUSAL_COLUMNS = (
    "start",
    "organization",
    "api_key",
    "api_key_name",
    "code",
    "count",
    "last_at",
    "request_id",
    "message",
)


def write_refusals(rows: QuerySet[Refusal], to: Writer) -> None:
    """Write a header, and a line per hour, key and error code."""
    table = csv.writer(to, lineterminator="\n")
    table.writerow(_REFUSAL_COLUMNS)
    for row in rows.select_related("organization", "api_key").order_by("hour", "api_key", "code"):
        key = row.api_key
        names = (row.organization.name, f"sk-{key.public_id}", key.name, row.code)
        last = (row.at.isoformat(), row.request_id, escape_formula(row.message))
        table.writerow((row.hour.isoformat(), *map(escape_formula, names), row.count, *last))


def write_csv(
    hours: QuerySet[UsageHour], unit: str, to: Writer, groups: Sequence[str] = GROUPS
) -> None:
    """Write a header, and a line per bucket and group. `unit` is hour, day, week or month."""
    table = csv.writer(to, lineterminator="\n")
    names = [name for group in groups for name in _NAMES.get(group, (group,))]
    table.writerow(("start", *names, *_FIGURES))
    table.writerows(_lines(hours, unit, groups))


def _lines(
    hours: QuerySet[UsageHour], unit: str, groups: Sequence[str]
) -> Iterator[Iterable[object]]:
    organizations = dict(Organization.objects.values_list("id", "name"))
    keys = {
        key.pk: (f"sk-{key.public_id}", key.name)
        for key in ApiKey.objects.only("id", "name", "public_id")
    }

    def list_texts(group: str, value: Any) -> Sequence[str]:
        if group == "api_key_id":
            return keys[value]
        return (organizations[value] if group == "organization_id" else value,)

    @cache
    def list_names(*values: Any) -> list[str]:
        pairs = zip(groups, values, strict=True)
        return [escape_formula(text) for pair in pairs for text in list_texts(*pair)]

    # Tuples, because a month by key and hour has thousands of rows of forty columns.
    columns = ("start", *groups, *(f"sum_{name}" for name in COUNTED))
    rows = group_rows(hours, unit, groups).values_list(*columns)
    for start, *values in rows.iterator(chunk_size=1000):
        sums = [*map(int, values[len(groups) :])]
        histograms = sums[_LATENCY_AT], sums[_FIRST_TOKEN_AT]
        spans = [find_quantile(each, q) for each in histograms for q in PERCENTILES.values()]
        yield (
            start.isoformat(),
            *list_names(*values[: len(groups)]),
            *sums[: len(_COUNTS)],
            f"{Decimal(sums[len(_COUNTS)]) / NANOS:f}",
            *("" if span is None else round(span) for span in spans),
        )
