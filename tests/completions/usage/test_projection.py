"""The projection of a month's end: exact where days are alike, and as far off as it says."""

import random
from datetime import UTC, date, datetime, timedelta

import pytest

from completions.usage.projection import CONFIDENCE, FEWEST, HISTORY, project

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TODAY = NOON.date()


def days_before(count: int) -> list[date]:
    return [TODAY - timedelta(days=i) for i in range(count, 0, -1)]


def test_equal_days_leave_no_error() -> None:
    found = project({**dict.fromkeys(days_before(40), 10.0), TODAY: 5.0}, NOON)
    assert found is not None
    assert found.used == 19 * 10 + 5
    assert (found.low, found.expected, found.high) == pytest.approx((300, 300, 300))
    assert [day for day, *_ in found.ends] == [date(2026, 11, n) for n in range(20, 31)]
    assert found.find_day(240) == date(2026, 11, 24)
    assert found.find_day(301) is None


def test_weekends_are_expected_as_they_were() -> None:
    use = {day: 1.0 if day.weekday() >= 5 else 10.0 for day in days_before(HISTORY)}
    found = project({**use, TODAY: 5.0}, NOON)  # a Friday
    assert found is not None
    ends = {day: expected for day, expected, _, _ in found.ends}
    assert ends[date(2026, 11, 22)] - ends[date(2026, 11, 20)] == pytest.approx(2)
    assert ends[date(2026, 11, 24)] - ends[date(2026, 11, 22)] == pytest.approx(20)


def test_a_short_history_has_no_projection_and_a_longer_one_begins_with_the_first_use() -> None:
    assert project({}, NOON) is None
    assert project(dict.fromkeys(days_before(FEWEST - 1), 4.0), NOON) is None
    found = project({**dict.fromkeys(days_before(FEWEST), 4.0), TODAY: 2.0}, NOON)
    assert found is not None
    assert found.expected == pytest.approx(4 * FEWEST + 4 * 11)


def test_the_month_ends_between_the_bounds_as_often_as_it_says() -> None:
    chance = random.Random(3)  # noqa: S311 - nothing secret is drawn
    hits, months = 0, 400
    for _ in range(months):
        use = {day: max(0.0, chance.gauss(100, 25)) for day in days_before(HISTORY)}
        rest = [max(0.0, chance.gauss(100, 25)) for _ in range(10)]
        found = project({**use, TODAY: 50.0}, NOON)
        assert found is not None
        truth = found.used + 50 + sum(rest)
        hits += found.low <= truth <= found.high
    assert abs(hits / months - CONFIDENCE) < 0.06
