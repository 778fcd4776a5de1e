"""What a query string means: every view has a link, and nothing in an address is ignored."""

from datetime import UTC, datetime

import pytest
from django.http import QueryDict

from completions.admin.usage.periods import MOST_BUCKETS, PRESETS, WIDTHS, Span, fit_width
from completions.admin.usage.view_state import (
    BadViewError,
    Defaults,
    View,
    read_view,
    refuse_unknown,
)

NOW = datetime(2026, 11, 20, 15, 32, 7, tzinfo=UTC)  # a Friday


def read(query: str) -> View:
    return read_view(QueryDict(query), NOW)


@pytest.mark.parametrize(
    ("name", "start", "end", "width"),
    [
        ("today", "2026-11-20", "2026-11-21", "hour"),
        ("7d", "2026-11-14", "2026-11-21", "day"),
        ("30d", "2026-10-22", "2026-11-21", "day"),
        ("90d", "2026-08-23", "2026-11-21", "day"),
        ("month", "2026-11-01", "2026-11-21", "day"),
        ("last-month", "2026-10-01", "2026-11-01", "day"),
        ("year", "2026-01-01", "2026-11-21", "week"),
    ],
)
def test_presets(name: str, start: str, end: str, width: str) -> None:
    view = read(f"range={name}")
    assert (f"{view.span.start:%Y-%m-%d}", f"{view.span.end:%Y-%m-%d}") == (start, end)
    assert view.width.name == width
    assert set(PRESETS) >= {name}


def test_days_win_over_a_preset_and_include_the_last() -> None:
    view = read("range=7d&from=2026-10-30&to=2026-11-02")
    assert (view.preset, view.span.last_day.isoformat()) == ("", "2026-11-02")
    assert [f"{at:%d}" for at in view.width.list_buckets(view.span)] == ["30", "31", "01", "02"]
    assert read("from=2026-11-19").span.end == datetime(2026, 11, 21, tzinfo=UTC)
    assert read("to=2026-11-19").span.start == datetime(2026, 11, 19, tzinfo=UTC)
    assert read("from=2026-11-19&to=2027-01-01").span.last_day == NOW.date()
    assert read("from=&to=&range=7d").preset == "7d"  # a form whose days are empty


@pytest.mark.parametrize(
    ("width", "starts"),
    [
        ("hour", ["2026-10-30T00", "2026-10-30T01"]),
        ("day", ["2026-10-30T00", "2026-10-31T00"]),
        ("week", ["2026-10-26T00", "2026-11-02T00"]),
        ("month", ["2026-10-01T00", "2026-11-01T00"]),
    ],
)
def test_buckets_begin_where_calendars_do(width: str, starts: list[str]) -> None:
    span = Span(datetime(2026, 10, 30, tzinfo=UTC), datetime(2026, 11, 28, tzinfo=UTC))
    buckets = WIDTHS[width].list_buckets(span)
    assert [f"{at:%Y-%m-%dT%H}" for at in buckets[:2]] == starts
    assert buckets[-1] < span.end <= WIDTHS[width].go_on(buckets[-1])
    assert all(WIDTHS[width].round_down(at) == at for at in buckets)


def test_long_spans_have_longer_bars() -> None:
    spans = (Span(datetime(year, 1, 1, tzinfo=UTC), NOW) for year in (2026, 2000))
    assert [fit_width(span).name for span in spans] == ["week", "month"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("range=fortnight", "range=fortnight: use today, 7d,"),
        ("by=color", "by=color: use organization, key, model, adapter, kind or batch."),
        ("show=money", "show=money: use tokens,"),
        ("per=minute", "per=minute: use hour, day, week or month."),
        ("from=20.11.2026", "from=20.11.2026: use a day such as"),
        ("from=0001-01-01", "from=0001-01-01: use a day from 2000-01-01 on."),
        ("from=2026-11-20&to=2026-11-19", "from=2026-11-20: it must not be after to=2026-11-19."),
        ("from=2026-11-21&to=2026-11-22", "this day has not begun"),
        ("from=2026-01-01&per=hour", f"more than {MOST_BUCKETS} bars"),
        ("key=sk-abc", "key=sk-abc: use the number in the address of its page."),
        ("organization=99999999999999999999", "organization=99999999999999999999: use"),
    ],
)
def test_what_no_view_has_is_refused(query: str, said: str) -> None:
    with pytest.raises(BadViewError) as caught:
        read(query)
    assert said in str(caught.value)


def test_unknown_parameters_are_refused_where_the_page_is_ours() -> None:
    refuse_unknown(QueryDict("range=7d&key=1"))
    with pytest.raises(BadViewError, match=r"models: there is no such parameter\. Use range,"):
        refuse_unknown(QueryDict("models=a"))


@pytest.mark.parametrize(
    "query",
    [
        "range=7d&by=kind&show=cost",
        "from=2026-01-01&to=2026-02-03&by=key&show=failed&per=week&model=org%2Fa%2Bb&adapter=",
    ],
)
def test_a_view_has_a_link(query: str) -> None:
    view = read(query)
    assert read(view.link_to().removeprefix("?")) == view
    assert view.make_free_query() == view.link_to().removeprefix("?")


def test_links_change_one_thing() -> None:
    view = read("from=2026-11-01&to=2026-11-05&model=a&batch=b")
    assert read(view.link_to(model=None)[1:]).filters == {"batch": "b"}
    changed = read(view.link_to(range="month")[1:])
    assert (changed.preset, changed.filters) == ("month", view.filters)


def test_a_page_fixes_a_filter_and_has_defaults() -> None:
    span = Span(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC))
    view = read_view(QueryDict("key=9&model=a"), NOW, {"key": 5}, Defaults("model", span))
    assert (view.group.name, view.span, view.filters) == ("model", span, {"key": 5, "model": "a"})
    assert view.lookups == {"api_key_id": 5, "model": "a"}
    assert "key=" not in view.link_to()
    assert "key=5" in view.make_free_query()
