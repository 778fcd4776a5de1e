"""Figures as a person reads them."""

from datetime import UTC, datetime, timedelta

import pytest

from completions.admin import display
from completions.admin.dashboard import chart_js

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (1_500_000, "1.5M"),
        (68_400_000, "68.4M"),
        (0.25, "0.25"),
        (None, display.NONE),
        (999.4, "999"),
        (999.7, "1k"),
        (999_499, "999k"),
        (999_999, "1M"),
        (99_960, "100k"),
        (999_999_999, "1G"),
        (999_999_999_999, "1T"),
        (10**15, "1000T"),
        (-999_999, "-1M"),
        (1234.5, "1.23k"),
        (12.34, "12.3"),
        (0.9999, "1"),
    ],
)
def test_compact_numbers(number: float | None, text: str) -> None:
    assert display.format_compact(number) == text


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "0.00"),
        (1234 * 10**9, "1,234.00"),
        (10**9, "1.00"),
        (355_700_000, "0.3557"),
        (100_000, "0.0001"),
        (99_999, "< 0.0001"),
        (None, display.NONE),
    ],
)
def test_money_has_the_digits_that_its_size_needs(nanos: int | None, text: str) -> None:
    assert display.format_money(nanos) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (840, "840 ms"),
        (999.9, "1 s"),
        (1250, "1.25 s"),
        (59_990, "1 min"),
        (65_000, "1 min 5 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
        (None, display.NONE),
    ],
)
def test_durations_are_written_in_the_unit_that_suits_them(
    milliseconds: float | None, text: str
) -> None:
    assert display.format_milliseconds(milliseconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (59, "59 s ago"), (61, "1 min ago"), (7300, "2 h ago"), (-90_000, "in 1 d")],
)
def test_how_long_ago(seconds: int, text: str) -> None:
    assert display.format_ago(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1, 3, "33 %"), (1, 30, "3.3 %"), (0, 5, "0 %"), (5, 5, "100 %"), (0, 0, display.NONE)],
)
def test_shares_are_percents_of_the_whole(part: int, whole: int, text: str) -> None:
    assert display.format_share(part, whole) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20 - 1, "1 MiB"), (10**12, "931 GiB")],
)
def test_sizes_are_written_in_the_unit_that_suits_them(count: int, text: str) -> None:
    assert display.format_size(count) == text


def test_what_others_wrote_stays_text() -> None:
    for made in (
        display.make_code("<b>", '/?a="b'),
        display.make_two_lines("<b>", "<i>"),
        display.make_label("<b>"),
    ):
        assert "<b>" not in made
        assert "<i>" not in made
        assert 'a="b' not in made


def test_sparklines_are_as_tall_as_the_largest_value() -> None:
    drawn = chart_js.make_sparkline([0, 5, 10], "three days")
    assert "three days" in drawn
    assert drawn.count("M") == 2
    assert "no use" in chart_js.make_sparkline([0, 0], "two days")
