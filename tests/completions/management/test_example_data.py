"""Made-up usage: consistent, marked, and gone without a trace."""

from datetime import UTC, datetime

import pytest
from django.db.models import Sum

from completions.management import example_data
from completions.models import (
    ApiKey,
    AuditEntry,
    Batch,
    File,
    LoadSample,
    Organization,
    UsageHour,
    UsageRecord,
)
from completions.models.usage import LATENCY
from tests.completions.conftest import Tenant

NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
pytestmark = pytest.mark.django_db


def test_the_hours_are_the_sums_of_the_records() -> None:
    example_data.fill(300, NOW, days=3)
    records = UsageRecord.objects
    assert 280 <= records.count() <= 320
    assert not records.filter(finished_at__gt=NOW).exists()
    for name in ("prompt_tokens", "completion_tokens", "forced_tokens", "cost_nanos"):
        sums = [rows.aggregate(n=Sum(name))["n"] for rows in (records, UsageHour.objects)]
        assert sums[0] == sums[1] > 0
    assert UsageHour.objects.aggregate(n=Sum("requests"))["n"] == records.count()
    waited_for = records.filter(status="completed").exclude(kind="batch").count()
    histogram = UsageHour.objects.aggregate(**{name: Sum(name) for name in LATENCY})
    assert sum(histogram.values()) == waited_for
    names = Organization.objects.values_list("name", flat=True)
    assert all(name.startswith(example_data.MARK) for name in names)


def test_it_goes_and_leaves_what_is_not_its_own(owner: Tenant) -> None:
    before = (ApiKey.objects.count(), AuditEntry.objects.count())
    example_data.fill(50, NOW, days=2)
    with pytest.raises(example_data.ExampleDataExistsError):
        example_data.fill(50, NOW)
    assert example_data.remove() == 4
    assert list(Organization.objects.all()) == [owner.organization]
    assert (ApiKey.objects.count(), AuditEntry.objects.count()) == before
    for model in (UsageRecord, UsageHour, LoadSample, Batch, File):
        assert not model._default_manager.exists()
    assert example_data.remove() == 0
