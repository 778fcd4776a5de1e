"""Usage as CSV, and what histograms say."""

import csv
import io
from datetime import UTC, datetime

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from completions.models import ApiKey, UsageHour
from completions.models.usage import BOUNDS_MS, LATENCY
from completions.usage import refusals
from completions.usage.refusals import RefusalCounter
from completions.usage.report import quantile
from tests.completions.conftest import Tenant

DAY = datetime(2026, 3, 1, tzinfo=UTC)


def use(tenant: Tenant, hour: int, **changes: object) -> None:
    UsageHour.objects.create(
        organization=tenant.organization, api_key=tenant.key, hour=DAY.replace(hour=hour),
        model="m", requests=2, prompt_tokens=10, completion_tokens=5, cost_nanos=1_500_000_000,
        latency_4=2, **changes,
    )  # fmt: skip


def exported(*arguments: str) -> list[dict[str, str]]:
    output = io.StringIO()
    call_command("export_usage", *arguments, stdout=output)
    return list(csv.DictReader(io.StringIO(output.getvalue())))


def test_days_and_hours(owner: Tenant, stranger: Tenant) -> None:
    use(owner, 3)
    use(owner, 4)
    use(stranger, 4)
    mine, theirs = exported()
    assert (mine["start"], mine["organization"]) == ("2026-03-01T00:00:00+00:00", "owner")
    assert (mine["api_key"], mine["requests"]) == (f"sk-{owner.key.public_id}", "4")
    assert (mine["cost"], mine["latency_p50_ms"], mine["first_token_p50_ms"]) == ("3", "150", "")
    assert theirs["requests"] == "2"
    assert len(exported("--bucket", "1h")) == 3
    assert len(exported("--organization", "owner", "--bucket", "1h")) == 2


def test_a_range_of_days_is_inclusive(owner: Tenant) -> None:
    use(owner, 23)
    assert len(exported("--from", "2026-03-01", "--to", "2026-03-01")) == 1
    assert exported("--from", "2026-03-02") == []
    assert exported("--to", "2026-02-28") == []
    assert len(exported("--to", "9999-12-31")) == 1


def test_a_range_that_ends_before_it_begins_is_refused(db: None) -> None:
    with pytest.raises(CommandError, match="--to must not be before --from"):
        exported("--from", "2026-03-02", "--to", "2026-03-01")


@pytest.mark.parametrize(
    "arguments", [["--from", "1.3.2026"], ["--organization", "nobody"], ["--bucket", "1w"]]
)
def test_bad_options(db: None, arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        exported(*arguments)


def test_names_are_no_formulas(owner: Tenant) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(name="=1+1")
    use(owner, 1)
    assert exported()[0]["api_key_name"] == "'=1+1"


def test_the_admin_exports_what_is_chosen(admin_client: Client, owner: Tenant) -> None:
    use(owner, 1)
    use(owner, 2)
    chosen = UsageHour.objects.get(hour=DAY.replace(hour=2))
    form = {"action": "export_hours", "_selected_action": [chosen.pk]}
    response = admin_client.post("/admin/completions/usagehour/", form)
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    (row,) = csv.DictReader(io.StringIO(response.content.decode()))
    assert row["start"] == "2026-03-01T02:00:00+00:00"


def test_quantiles_lie_evenly_inside_a_bucket() -> None:
    counts = dict.fromkeys(LATENCY, 0)
    assert quantile(counts, LATENCY, 0.5) is None
    counts[LATENCY[1]] = 10  # between 10 and 20 ms
    assert quantile(counts, LATENCY, 0.5) == 15
    counts[LATENCY[-1]] = 90
    assert quantile(counts, LATENCY, 0.95) == BOUNDS_MS[-1]


@given(st.lists(st.integers(0, 5), min_size=15, max_size=15), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_grow(counts: list[int], one: float, other: float) -> None:
    sums = dict(zip(LATENCY, counts, strict=True))
    low, high = (quantile(sums, LATENCY, share) for share in sorted((one, other)))
    if low is None or high is None:
        assert sum(counts) == 0
    else:
        assert 0 <= low <= high <= BOUNDS_MS[-1]


def test_refusals_by_hour(owner: Tenant) -> None:
    counter = RefusalCounter(lambda: DAY.replace(hour=3, minute=5))
    counter.count(owner.organization.pk, owner.key.pk, "invalid_value", "=1+1", "req_1")
    refusals.store(counter.take())
    (row,) = exported("--refusals", "--from", "2026-03-01")
    assert (row["start"], row["organization"]) == ("2026-03-01T03:00:00+00:00", "owner")
    assert (row["code"], row["count"], row["message"]) == ("invalid_value", "1", "'=1+1")
    assert exported("--refusals", "--from", "2026-03-02") == []
