"""The dashboard's figures: from records and from hours alike, and without Redis."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from completions.admin.dashboard import figures
from completions.admin.dashboard.figures import DAY, HOUR, MONTH, NOTHING, Period
from completions.admin.live import state
from completions.management import example_data
from completions.models import BudgetWarning, LoadSample, UsageHour, UsageRecord
from completions.models.usage import FIRST_TOKEN, LATENCY
from completions.usage.report import quantile
from tests.completions.admin.test_tables import record
from tests.completions.conftest import Tenant

NOW = datetime(2026, 11, 20, 15, 32, 7, tzinfo=UTC)


def test_acting_while_redis_is_down_says_so(
    admin: Client, unreachable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client() -> None:
        raise state.UnreachableError(state.UNREACHABLE)

    monkeypatch.setattr(state, "open_shards", client)
    for path in ("jobs/cmpl-1/cancel/", "jobs/cmpl-1/requeue/", "workers/w/drain/"):
        page = admin.post(f"/admin/{path}", follow=True).content.decode()
        assert "Nothing was done. Redis does not answer" in page


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "read", lambda: state.Live(reachable=False))


def sums(columns: tuple[str, ...], **counts: int) -> dict[str, int]:
    return {**dict.fromkeys(columns, 0), **counts}


@pytest.mark.parametrize(
    ("counts", "q", "expected"),
    [
        ({"latency_0": 4}, 0.5, 5.0),  # half way through 0 to 10 ms
        ({"latency_3": 1, "latency_6": 1}, 0.5, 100.0),
        ({"latency_3": 1, "latency_6": 1}, 0.95, 950.0),
        ({"latency_14": 3}, 0.5, 300_000.0),  # beyond the last bound
        ({}, 0.5, None),
    ],
)
def test_quantiles_of_a_histogram(counts: dict[str, int], q: float, expected: float | None) -> None:
    assert quantile(sums(LATENCY, **counts), LATENCY, q) == expected


@pytest.mark.parametrize(
    ("period", "first", "last"),
    [
        (HOUR, "2026-11-20T14:35", "2026-11-20T15:30"),
        (DAY, "2026-11-19T16:00", "2026-11-20T15:00"),
        (MONTH, "2026-10-22T00:00", "2026-11-20T00:00"),
    ],
)
def test_periods_are_cut_into_buckets(period: Period, first: str, last: str) -> None:
    buckets = [f"{bucket:%Y-%m-%dT%H:%M}" for bucket in period.list_buckets(NOW)]
    assert (buckets[0], buckets[-1]) == (first, last)
    assert len(buckets) == period.count


def test_an_hour_from_records_has_what_its_sums_have(db: None) -> None:
    now = timezone.now()
    example_data.fill(200, now, days=2)
    UsageRecord.objects.filter(finished_at__lt=HOUR.start(now)).delete()
    UsageHour.objects.all().delete()
    counts = UsageRecord.objects.count()
    total = figures.add_up(figures.load_series(HOUR, now))
    assert total["requests"] == counts
    waited = UsageRecord.objects.filter(status="completed").exclude(kind="batch").count()
    assert sum(total[column] for column in LATENCY) == waited


def test_records_fall_into_the_buckets_of_the_hours(owner: Tenant) -> None:
    """The boundaries are inclusive above, as where the hours are added up."""
    record(owner, 0, queued_ms=0, run_ms=10, first_token_ms=10, finished_at=NOW)
    record(owner, 1, queued_ms=1, run_ms=10, first_token_ms=None, finished_at=NOW)
    record(owner, 2, kind="batch", finished_at=NOW)
    record(owner, 3, status="failed", finished_at=NOW)
    total = figures.add_up(figures.load_series(HOUR, NOW))
    assert [total[column] for column in LATENCY[:3]] == [1, 1, 0]
    assert [total[column] for column in FIRST_TOKEN[:2]] == [1, 0]


def test_periods_compare_with_the_time_before(owner: Tenant) -> None:
    common = {"organization": owner.organization, "api_key": owner.key, "model": "tiny"}
    for hours_ago, requests in ((2, 5), (30, 7), (80, 11)):
        hour = DAY.round_down(NOW - timedelta(hours=hours_ago))
        UsageHour.objects.create(hour=hour, requests=requests, **common)
    assert figures.add_up(figures.load_series(DAY, NOW))["requests"] == 5
    assert figures.sum_before(DAY, NOW)["requests"] == 7
    assert figures.add_up(figures.load_series(MONTH, NOW))["requests"] == 23
    (row,) = figures.rank(MONTH, NOW, "api_key_id")
    assert (row["api_key_id"], row["requests"]) == (owner.key.pk, 23)


def test_load_is_a_mean_over_time_and_a_sum_over_models(db: None) -> None:
    at = NOW.replace(second=0)
    for minutes, model, running in ((0, "a", 4), (0, "b", 2), (1, "a", 2)):
        moment = at - timedelta(minutes=minutes)
        LoadSample.objects.create(at=moment, model=model, running=running, slots=8)
    last = figures.load_samples(HOUR, NOW)[-1]
    assert last is not None
    assert (last["running"], last["slots"]) == (5.0, 16.0)
    assert figures.load_samples(HOUR, NOW)[0] is None


@pytest.mark.parametrize("period", ["1h", "24h", "30d", "junk"])
def test_the_dashboard_of_an_unused_service(admin: Client, unreachable: None, period: str) -> None:
    page = admin.get("/admin/", {"period": period}).content.decode()
    assert "No request has ended in this period" in page
    assert "Redis does not answer" in page
    assert "Nothing failed" in page


def test_the_charts_hold_what_was_used(admin: Client, unreachable: None) -> None:
    example_data.fill(300, timezone.now(), days=3)
    page = admin.get("/admin/").content.decode()
    charts = [json.loads(unescape(data)) for data in re.findall(r'data-value="([^"]+)"', page)]
    options = [json.loads(unescape(data)) for data in re.findall(r'data-options="([^"]+)"', page)]
    assert len(charts) == len(options) == 6
    requests = charts[0]
    assert len(requests["labels"]) == 24
    shown = sum(sum(series["data"]) for series in requests["datasets"])
    assert shown == figures.add_up(figures.load_series(DAY, timezone.now()))["requests"] > 0
    assert "nightly extraction" in page
    assert "example-large" in page


def test_a_models_link_finds_its_requests(admin: Client, unreachable: None, owner: Tenant) -> None:
    record(owner, 1, model="org/a+b&c")
    page = admin.get("/admin/?period=1h").content.decode()
    (link,) = re.findall(r'href="([^"]*usagerecord/\?model=[^"]*)"', page)
    assert "cmpl-1" in admin.get(unescape(link)).content.decode()


def test_nothing_is_the_neutral_element() -> None:
    assert figures.add_up([]) == dict(NOTHING)


def test_the_dashboard_warns_of_budgets(admin: Client, unreachable: None, owner: Tenant) -> None:
    BudgetWarning.objects.create(
        organization=owner.organization,
        scope=f"o{owner.organization.pk}",
        budget="monthly_cost_budget",
        period=timezone.now().date().replace(day=1),
        percent=80,
    )
    text = admin.get("/admin/").content.decode()
    assert f"{owner.organization.name} has used 80 % of its monthly cost budget." in text
