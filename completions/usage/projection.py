"""What a month's use will come to at its end, and how far off that may be."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import NormalDist, fmean

HISTORY = 28
"""Days that a projection is made from: four of each weekday."""
FEWEST = 3
"""Whole days of use without which there is no projection."""
CONFIDENCE = 0.8
"""The share of months whose end lies between `low` and `high`, where days vary independently."""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Projection:
    used: float
    """So far in the month."""
    ends: Sequence[tuple[date, float, float, float]]
    """What is expected at the end of today and of each day that is left, with the bounds."""

    @property
    def expected(self) -> float:
        return self.ends[-1][1]

    @property
    def low(self) -> float:
        return self.ends[-1][2]

    @property
    def high(self) -> float:
        return self.ends[-1][3]

    def find_day(self, amount: float) -> date | None:
        """Return the day on which so much is expected to be reached in this month."""
        return next((day for day, expected, _, _ in self.ends if expected >= amount), None)


def project(daily: Mapping[date, float], now: datetime) -> Projection | None:
    """Project the use of `now`'s month from that of each day so far; None without FEWEST days.

    A day that is left is expected to be like the mean of its weekday in the last HISTORY days, or
    of all days where there are less than two weeks. The bounds cover how much single days differ
    from these means, and how uncertain the means are.
    """
    today = now.date()
    past = [(day, daily.get(day, 0.0)) for day in _list_days(today - HISTORY * _DAY, today)]
    while past and not past[0][1]:  # before the first use
        del past[0]
    if len(past) < FEWEST:
        return None
    means = _Means(past)
    used = sum(value for day, value in daily.items() if (day.year, day.month) == _month(today))
    gone = (now - now.replace(hour=0, minute=0, second=0, microsecond=0)) / _DAY
    last = (today.replace(day=1) + 31 * _DAY).replace(day=1)
    expected, weights = used, dict.fromkeys(range(means.groups), 0.0)
    variance, ends = 0.0, []
    for day in _list_days(today, last):
        part = 1 - gone if day == today else 1.0
        group = means.find_group(day)
        expected += part * means.values[group]
        weights[group] += part
        variance += part * means.variance
        doubt = sum(w * w * means.variance / means.counts[g] for g, w in weights.items() if w)
        error = means.quantile * math.sqrt(variance + doubt)
        ends.append((day, expected, max(used, expected - error), expected + error))
    return Projection(used, ends)


class _Means:
    """The means of the weekdays, or of all days as one group."""

    def __init__(self, past: Sequence[tuple[date, float]]) -> None:
        self.groups = 7 if len(past) >= 14 else 1
        members: list[list[float]] = [[] for _ in range(self.groups)]
        for day, value in past:
            members[self.find_group(day)].append(value)
        self.counts = [len(values) for values in members]
        self.values = [fmean(values) for values in members]
        freedom = len(past) - self.groups
        squares = (
            (value - mean) ** 2
            for values, mean in zip(members, self.values, strict=True)
            for value in values
        )
        self.variance = sum(squares) / freedom
        z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
        self.quantile = z + (z**3 + z) / (4 * freedom)
        """Student's, which is wider where there are few days."""

    def find_group(self, day: date) -> int:
        return day.weekday() % self.groups


def _list_days(first: date, end: date) -> list[date]:
    return [first + i * _DAY for i in range((end - first).days)]


def _month(day: date) -> tuple[int, int]:
    return day.year, day.month
