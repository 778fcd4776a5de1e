"""Usage by time and group, for the API, the admin and CSV."""

import csv
import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from itertools import accumulate, chain, islice
from typing import Any, Protocol

from django.db.models import DateTimeField, F, Field, QuerySet, Sum
from django.db.models.functions import Trunc

from completions.models import ApiKey, Organization, Refusal, UsageHour
from completions.models.usage import (
    BOUNDS_MS,
    COUNTED,
    LATENCY,
    NANOS,
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
    (found,) = find_quantiles([sums[name] for name in columns], (share,)) or (None,)
    return found


def find_quantiles(counts: Sequence[int], shares: Iterable[float]) -> list[float]:
    """Return the same of a histogram's counts for each share; nothing if it is empty."""
    sums = list(accumulate(counts))
    if not sums or not (total := sums[-1]):
        return []
    found = []
    for share in shares:
        rank = share * total
        index = bisect_left(sums, rank)
        below = sums[index] - counts[index]
        lower = BOUNDS_MS[index - 1] if index else 0
        upper = BOUNDS_MS[index] if index < len(BOUNDS_MS) else lower
        found.append(lower + (upper - lower) * max(0.0, rank - below) / counts[index])
    return found


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
_NAMES = {"organization_id": ("organization",), "api_key_id": ("api_key", "api_key_name")}
"""The columns of groups whose names are not their own."""
_FIGURES = (
    *_COUNTS,
    "cost",
    "latency_p50_ms",
    "latency_p95_ms",
    "first_token_p50_ms",
    "first_token_p95_ms",
)
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
    names = [name for group in groups for name in _NAMES.get(group, (group,))]
    lines = chain([("start", *names, *_FIGURES)], _iterate_lines(hours, unit, groups))
    while part := tuple(islice(lines, _AT_ONCE)):  # a response encodes what it is given at once
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(part)
        to.write(text.getvalue())


_AT_ONCE = 5000
"""Lines that are written together."""


def _iterate_lines(
    hours: QuerySet[UsageHour], unit: str, groups: Sequence[str]
) -> Iterator[Iterable[object]]:
    name_groups = _make_namer(groups)
    columns = ("start", *groups, *(f"sum_{name}" for name in COUNTED))
    # Tuples and slices, because a month by key and hour has thousands of rows of forty columns.
    rows = group_rows(hours, unit, groups).values_list(*columns)
    counts_at, cost_at = 1 + len(groups), 1 + len(groups) + len(_COUNTS)
    latency_at, first_token_at = cost_at + 1, cost_at + 1 + len(LATENCY)
    for row in rows.iterator(chunk_size=1000):
        yield (
            _format_start(row[0]),
            *name_groups(*row[1:counts_at]),
            *row[counts_at:cost_at],
            f"{Decimal(row[cost_at]) / NANOS:f}",
            *_round_percentiles(row[latency_at:first_token_at]),
            *_round_percentiles(row[first_token_at:]),
        )


_format_start = lru_cache(1000)(datetime.isoformat)


def _round_percentiles(counts: Sequence[int]) -> Sequence[object]:
    return [*map(round, find_quantiles(counts, PERCENTILES.values()))] or _NO_PERCENTILES


_NO_PERCENTILES = ("",) * len(PERCENTILES)


def _make_namer(groups: Sequence[str]) -> Callable[..., list[str]]:
    """Return a function from the values of the columns in `groups` to their cells."""
    organizations = dict(Organization.objects.values_list("id", "name"))
    keys = {
        key: (f"sk-{public_id}", name)
        for key, public_id, name in ApiKey.objects.values_list("id", "public_id", "name")
    }

    def list_texts(group: str, value: Any) -> Sequence[str]:
        if group == "api_key_id":
            return keys[value]
        return (organizations[value] if group == "organization_id" else value,)

    @cache
    def name_groups(*values: Any) -> list[str]:
        pairs = zip(groups, values, strict=True)
        return [escape_formula(text) for pair in pairs for text in list_texts(*pair)]

    return name_groups
