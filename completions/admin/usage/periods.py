"""Spans of time that a view of usage covers, and the buckets that it cuts them into. All in UTC."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

_HOUR, _DAY, _WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
MOST_BUCKETS = 744
"""Bars of a chart: the hours of a month."""


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` to before `end`."""

    start: datetime
    end: datetime

    @property
    def last_day(self) -> date:
        return (self.end - timedelta(microseconds=1)).date()


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    title: str
    find: Callable[[datetime], Span]
    """Return the span at this moment, from the midnight before it."""


def _make_days(count: int) -> Callable[[datetime], Span]:
    return lambda midnight: Span(midnight - (count - 1) * _DAY, midnight + _DAY)


def _find_last_month(midnight: datetime) -> Span:
    first = midnight.replace(day=1)
    return Span((first - _DAY).replace(day=1), first)


PRESETS = {
    each.name: each
    for each in (
        Preset("today", "Today", _make_days(1)),
        Preset("7d", "7 days", _make_days(7)),
        Preset("30d", "30 days", _make_days(30)),
        Preset("90d", "90 days", _make_days(90)),
        Preset("month", "This month", lambda at: Span(at.replace(day=1), at + _DAY)),
        Preset("last-month", "Last month", _find_last_month),
        Preset("year", "This year", lambda at: Span(at.replace(month=1, day=1), at + _DAY)),
    )
}


@dataclass(frozen=True, slots=True)
class Width:
    """The length of a bucket."""

    name: str
    title: str
    round_down: Callable[[datetime], datetime]
    go_on: Callable[[datetime], datetime]
    """Return the start of the bucket after the one that starts then."""
    look: str
    """How the start of a bucket is written, for `strftime`."""

    def list_buckets(self, span: Span) -> list[datetime]:
        """Return the starts of the buckets, at most one more than MOST_BUCKETS."""
        starts = [self.round_down(span.start)]
        while (at := self.go_on(starts[-1])) < span.end and len(starts) <= MOST_BUCKETS:
            starts.append(at)
        return starts

    def format(self, bucket: datetime) -> str:
        return f"{bucket:{self.look}}"


def find_midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def get_midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def find_next_month(first: datetime) -> datetime:
    return (first + 31 * _DAY).replace(day=1)


WIDTHS = {
    each.name: each
    for each in (
        Width(
            "hour",
            "hour",
            lambda at: at.replace(minute=0, second=0, microsecond=0),
            lambda at: at + _HOUR,
            "%b %-d %H:%M",
        ),
        Width("day", "day", find_midnight, lambda at: at + _DAY, "%b %-d"),
        Width(
            "week",
            "week",
            lambda at: find_midnight(at) - at.weekday() * _DAY,
            lambda at: at + _WEEK,
            "week of %b %-d",
        ),
        Width(
            "month", "month", lambda at: find_midnight(at).replace(day=1), find_next_month, "%b %Y"
        ),
    )
}
_FITTING = ((timedelta(days=2), "hour"), (timedelta(days=92), "day"), (timedelta(days=366), "week"))


def fit_width(span: Span) -> Width:
    """Return the width that a chart of this span has unless another is asked for."""
    length = span.end - span.start
    return WIDTHS[next((name for most, name in _FITTING if length <= most), "month")]
