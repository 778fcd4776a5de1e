"""The figures of a view of usage, from the hourly sums."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db.models import Case, CharField, QuerySet, Value, When
from django.db.models.functions import Cast

from completions.admin.dashboard.hourly_sums import (
    DAYS,
    HOURS,
    Sums,
    cut_time,
    make_hour_sums,
    rename_sums,
)
from completions.admin.usage import view_state
from completions.admin.usage.periods import find_midnight
from completions.admin.usage.view_state import Dimension, Measure, View
from completions.models import UsageHour
from completions.models.usage import SUMMED
from completions.usage.projection import HISTORY, Projection, project

Hours = QuerySet[UsageHour]
SHOWN = 7
"""Groups with a colour of their own; the others are one more."""


@dataclass(frozen=True, slots=True)
class GroupSums:
    value: view_state.Value
    sums: Sums
    before: Sums
    """Those of the span before, of the same length."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The values of one group in each bucket."""

    value: view_state.Value | None
    """None for all groups but the first SHOWN."""
    values: Sequence[float]


NOTHING: Sums = dict.fromkeys(SUMMED, 0)


def find_span_before(view: View, now: datetime) -> tuple[datetime, datetime]:
    """Return the start and end of the span before the view's, as long as that is until now."""
    start = view.span.start
    return start - (min(view.span.end, now) - start), start


def load_groups(hours: Hours, view: View, now: datetime) -> list[GroupSums]:
    """Return all groups of the view, those with the highest measure first."""
    group, (begin, end) = view.group, find_span_before(view, now)
    seen = _sum_by(hours.filter(hour__gte=view.span.start, hour__lt=view.span.end), group)
    before = _sum_by(hours.filter(hour__gte=begin, hour__lt=end), group)
    rows = [GroupSums(value, sums, before.get(value, NOTHING)) for value, sums in seen.items()]
    return sorted(rows, key=lambda row: (-view.measure.add_up(row.sums), str(row.value)))


def _sum_by(hours: Hours, group: Dimension) -> dict[view_state.Value, Sums]:
    # Cast, because grouping by a bare column makes SQLite scan all rows in its index's order.
    by = hours.order_by().values(by=Cast(group.column, CharField()))
    rows = map(rename_sums, by.annotate(**make_hour_sums(SUMMED)))
    return {int(row["by"]) if group.is_id else row["by"]: row for row in rows}


def add_up(rows: Sequence[Sums]) -> Sums:
    return {name: sum(row[name] for row in rows) for name in SUMMED}


def load_stacks(hours: Hours, view: View, groups: Sequence[GroupSums]) -> list[Stack]:
    """Return the measure of each group and bucket: the first SHOWN groups, then all others."""
    shown = [row.value for row in groups[:SHOWN]]
    numbers = [When(**{view.group.column: value}, then=Value(i)) for i, value in enumerate(shown)]
    rows = (
        hours.filter(hour__gte=view.span.start, hour__lt=view.span.end)
        .order_by()
        .values(
            number=Case(*numbers, default=Value(SHOWN)),
            at=cut_time("hour", HOURS if view.width.name == "hour" else DAYS),
        )
        .annotate(**make_hour_sums(view.measure.columns))
    )
    sums: defaultdict[tuple[int, datetime], int] = defaultdict(int)
    for row in map(rename_sums, rows):
        bucket = view.width.round_down(datetime.fromisoformat(row["at"]).replace(tzinfo=UTC))
        sums[row["number"], bucket] += view.measure.add_up(row)
    buckets = view.width.list_buckets(view.span)
    stacks = [
        Stack(value, _scale([sums[number, bucket] for bucket in buckets], view.measure))
        for number, value in enumerate(shown)
    ]
    if len(groups) > SHOWN:
        others = [sums[SHOWN, bucket] for bucket in buckets]
        stacks.append(Stack(None, _scale(others, view.measure)))
    return stacks


def _scale(values: Sequence[int], measure: Measure) -> list[float]:
    if measure.scale == 1:
        return list(values)
    return [round(value / measure.scale, 6) for value in values]


# The month ---------------------------------------------------------------------------------------


def load_days(hours: Hours, measure: Measure, now: datetime) -> dict[date, float]:
    """Return the measure of each day of this month, and of those that a projection is made from."""
    midnight = find_midnight(now)
    first = min(midnight.replace(day=1), midnight - timedelta(days=HISTORY))
    rows = (
        hours.filter(hour__gte=first)
        .order_by()
        .values(at=cut_time("hour", DAYS))
        .annotate(**make_hour_sums(measure.columns))
    )
    return {
        date.fromisoformat(row["at"]): measure.add_up(row) / measure.scale
        for row in map(rename_sums, rows)
    }


@dataclass(frozen=True, slots=True)
class Month:
    """This month, day by day: what was used up to the end of each, and what is expected."""

    used: Mapping[date, float]
    projection: Projection | None


def load_month(hours: Hours, measure: Measure, now: datetime) -> Month:
    daily = load_days(hours, measure, now)
    day, total, used = now.date().replace(day=1), 0.0, {}
    while day <= now.date():
        total += daily.get(day, 0.0)
        used[day] = total
        day += timedelta(days=1)
    return Month(used, project(daily, now))


def find_first_kind(hours: Hours) -> datetime | None:
    """Return the hour from which on the sums tell kinds and batches apart; None if none does."""
    known = hours.exclude(kind="").order_by("hour").values_list("hour", flat=True)
    return known.first()
