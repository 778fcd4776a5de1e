"""Tables that the service writes: read-only, without prompts, without a query per row."""

import re
from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from completions.models import Job, UsageRecord
from tests.completions.conftest import Tenant

MOMENT = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def rows(owner: Tenant) -> None:
    common = {"organization": owner.organization, "api_key": owner.key, "model": "tiny"}
    for i in range(3):
        UsageRecord.objects.create(
            job_id=f"cmpl-{i}", kind="sync", status="completed", created_at=MOMENT,
            finished_at=MOMENT, **common,
        )  # fmt: skip
        Job.objects.create(
            id=f"cmpl-{i}", request={"prompts": [[424242]]}, view={"x": 424242},
            deadline_at=MOMENT, ttl=60, **common,
        )  # fmt: skip


@pytest.mark.parametrize("model", ["usagerecord", "job"])
def test_usage_and_jobs_are_read_only(admin: Client, rows: None, model: str) -> None:
    base = f"/admin/completions/{model}/"
    with CaptureQueriesContext(connection) as queries:
        page = admin.get(base).content.decode()
    assert "cmpl-1" in page
    assert len(queries) < 12  # not one per row
    pk = "cmpl-1" if model == "job" else UsageRecord.objects.get(job_id="cmpl-1").pk
    detail = admin.get(f"{base}{pk}/change/")
    assert detail.status_code == 200
    assert "424242" not in detail.content.decode()
    assert 'name="_save"' not in detail.content.decode()
    assert admin.get(f"{base}add/").status_code == 403
    assert admin.get(f"{base}{pk}/delete/").status_code == 403
    filtered = admin.get(f"{base}?status__exact=failed").content.decode()
    assert "cmpl-1" not in filtered


def test_organizations_count_their_keys(admin: Client, owner: Tenant) -> None:
    page = admin.get("/admin/completions/organization/").content.decode()
    assert re.search(r"field-key_count[^>]*>\s*1\s*<", page)
