"""The charts of the panel of usage: a stack of groups with its budget, and the month to its end."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

from completions.accounts.keys import read_budget
from completions.admin.dashboard import chart_js
from completions.admin.dashboard.chart_js import Series
from completions.admin.usage.figures import Month, Stack
from completions.admin.usage.labels import Label, shorten
from completions.admin.usage.periods import find_next_month, get_midnight
from completions.admin.usage.view_state import Measure, Value, View
from completions.models import ApiKey, Organization

Chart = Mapping[str, object]
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8b5cf6")
"""Distinguishable with colour blindness (Okabe and Ito), in both themes."""


def find_budget(owner: ApiKey | Organization | None, measure: Measure, period: str) -> float | None:
    """Return the budget of a measure, `period` being `daily` or `monthly`."""
    if owner is None or not measure.budget:
        return None
    most: int | None = getattr(read_budget(owner), f"{period}_{measure.budget}")
    return None if most is None else most / measure.scale


def make_stack_chart(
    view: View,
    stacks: Sequence[Stack],
    labels: Mapping[Value, Label],
    owner: ApiKey | Organization | None,
) -> Chart:
    buckets = view.width.list_buckets(view.span)
    series = [
        Series(
            "all others" if stack.value is None else shorten(labels[stack.value], view.group),
            stack.values,
            chart_js.GREY if stack.value is None else _COLORS[number],
        )
        for number, stack in enumerate(stacks)
    ]
    period = {"day": "daily", "month": "monthly"}.get(view.width.name)
    budget = find_budget(owner, view.measure, period) if period else None
    lines = []
    if period and budget is not None:
        lines = [Series(f"{period} budget", [budget] * len(buckets), chart_js.RED, dashed=True)]
    return chart_js.make_bars([view.width.format(at) for at in buckets], series, lines)


def make_month_chart(month: Month, budget: float | None, now: datetime) -> Chart:
    """Return the sum from the first of the month on, and what is expected until its last day."""
    first = get_midnight(now.date().replace(day=1))
    count = (find_next_month(first) - first).days
    days = [first.date() + timedelta(days=i) for i in range(count)]
    series = [Series("used", [_round(month.used.get(day)) for day in days], chart_js.PRIMARY)]
    if month.projection is not None:
        yesterday = now.date() - timedelta(days=1)
        known: dict[date, tuple[float, ...]] = {
            day: (expected, low, high) for day, expected, low, high in month.projection.ends
        }
        if yesterday in month.used:
            known[yesterday] = (month.used[yesterday],) * 3
        for number, (title, color) in enumerate(_EXPECTED):
            values = [_round(known[day][number]) if day in known else None for day in days]
            series.append(Series(title, values, color, dashed=True))
    if budget is not None:
        series.append(Series("monthly budget", [budget] * count, chart_js.RED, dashed=True))
    return chart_js.make_lines([f"{day:%b %-d}" for day in days], series, curved=False)


_EXPECTED = (("expected", chart_js.PRIMARY), ("low", chart_js.GREY), ("high", chart_js.GREY))


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
