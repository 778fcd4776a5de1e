"""Tables that the service writes: read-only, found by ids, without a query per row."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib import admin as django_admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from completions.management import example_data
from completions.models import Organization, UsageRecord
from tests.completions.conftest import Tenant

LISTS = {
    "/admin/": 18,
    "/admin/?period=1h": 18,
    "/admin/?period=30d": 18,
    "/admin/completions/apikey/": 8,
    "/admin/completions/organization/": 7,
    "/admin/completions/usagerecord/": 6,
    "/admin/completions/usagehour/": 8,
    "/admin/completions/batch/": 8,
    "/admin/completions/file/": 8,
    "/admin/completions/auditentry/": 8,
    "/admin/completions/session/": 8,
    "/admin/completions/refusal/": 8,
    "/admin/completions/wrongkey/": 8,
    "/admin/models/": 5,
    "/admin/usage/?by=key": 12,
    "/admin/usage/?by=batch": 13,
}
"""Most queries, however many rows there are."""
DETAILS = {
    "apikey": 18,
    "organization": 17,
    "usagerecord": 6,
    "batch": 17,
    "file": 6,
    "auditentry": 5,
    "usagehour": 6,
}


def queries_of(admin: Client, path: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert admin.get(path).status_code == 200, path
    return len(queries)


@pytest.mark.wide
def test_the_number_of_queries_does_not_grow_with_the_rows(admin: Client) -> None:
    example_data.fill(400, timezone.now(), days=3)
    counts = {path: queries_of(admin, path) for path in LISTS}
    assert {path: count for path, count in counts.items() if count > LISTS[path]} == {}


@pytest.mark.wide
@pytest.mark.parametrize("rows", [4, pytest.param(20, marks=pytest.mark.long)])
def test_the_number_of_queries_of_one_rows_page_is_bounded(admin: Client, rows: int) -> None:
    example_data.fill(400, timezone.now(), days=3)
    counts = {}
    for model in DETAILS:
        for row in apps.get_model("completions", model)._default_manager.order_by("-pk")[:rows]:
            path = f"/admin/completions/{model}/{row.pk}/change/"
            if model == "usagerecord":
                path = f"/admin/jobs/{row.job_id}/"
            counts[model, row.pk] = queries_of(admin, path)
    assert {key: count for key, count in counts.items() if count > DETAILS[key[0]]} == {}


def record(tenant: Tenant, number: int, **fields: object) -> UsageRecord:
    now = timezone.now()
    return UsageRecord.objects.create(
        **{
            "job_id": f"cmpl-{number}",
            "request_id": f"req_{number}",
            "model": "tiny",
            "organization": tenant.organization,
            "api_key": tenant.key,
            "kind": "sync",
            "status": "completed",
            "queued_ms": 5,
            "first_token_ms": 40,
            "run_ms": 900,
            "created_at": now - timedelta(seconds=1),
            "finished_at": now,
            **fields,
        }
    )


def test_requests_are_found_by_either_id(admin: Client, owner: Tenant) -> None:
    for number in range(3):
        record(owner, number)
    for term in ("cmpl-1", "req_1"):
        page = admin.get("/admin/completions/usagerecord/", {"q": term}).content.decode()
        assert "cmpl-1" in page
        assert "cmpl-2" not in page
    assert "cmpl-1" not in admin.get("/admin/completions/usagerecord/?q=cmpl").content.decode()


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("status=failed", {2}),
        ("error_code=worker_error", {2}),
        ("slower=1", {1}),
        ("kind=batch", {1}),
        ("ended=1", {0, 1, 2}),
        ("model=other", {2}),
        ("status=", {0, 1, 2, 3}),
    ],
)
def test_requests_are_filtered(admin: Client, owner: Tenant, query: str, shown: set[int]) -> None:
    record(owner, 0)
    record(owner, 1, kind="batch", run_ms=4000)
    record(owner, 2, status="failed", error_code="worker_error", model="other")
    record(owner, 3, finished_at=timezone.now() - timedelta(days=2))
    page = admin.get(f"/admin/completions/usagerecord/?{query}").content.decode()
    assert {number for number in range(4) if f"cmpl-{number}" in page} == shown


@pytest.mark.parametrize("name", ["status", "ended", "slower"])
def test_a_filter_with_an_unknown_value_is_taken_out_of_the_address(
    admin: Client, name: str
) -> None:
    page = admin.get(f"/admin/completions/usagerecord/?{name}=junk")
    assert (page.status_code, page.headers["Location"]) == (
        302,
        "/admin/completions/usagerecord/?e=1",
    )
    assert admin.get(page.headers["Location"]).status_code == 200


@pytest.mark.represented_by("usagerecord")
@pytest.mark.parametrize("model", ["usagerecord", "batch", "file", "auditentry"])
def test_what_the_service_wrote_cannot_be_edited(admin: Client, model: str) -> None:
    example_data.fill(20, timezone.now(), days=1)
    base = f"/admin/completions/{model}/"
    # The console has a page of its own for new batches.
    assert admin.get(f"{base}add/").status_code == (302 if model == "batch" else 403)
    page = admin.get(base).content.decode()
    assert 'name="_save"' not in page
    assert 'name="action"' not in page


def test_a_usage_record_links_to_its_job(admin: Client, owner: Tenant) -> None:
    found = record(owner, 1)
    response = admin.get(f"/admin/completions/usagerecord/{found.pk}/change/")
    assert response.headers["Location"] == "/admin/jobs/cmpl-1/"


def test_organizations_show_what_they_used(admin: Client, owner: Tenant) -> None:
    example_data.fill(50, timezone.now(), days=1)
    page = admin.get("/admin/completions/organization/").content.decode()
    assert Organization.objects.filter(name="Example: Search").exists()
    assert "Example: Search" in page
    assert "owner" in page


@pytest.mark.represented_by("Viewer-False")
@pytest.mark.parametrize(("role", "may"), [("Viewer", False), ("Operator", True)])
def test_the_role_decides_who_sees_the_pages(
    in_role: Callable[[str], Client], owner: Tenant, role: str, may: bool
) -> None:
    user = in_role(role)
    record(owner, 1)
    for path in (
        "/admin/",
        "/admin/live/",
        "/admin/workers/",
        "/admin/models/",
        "/admin/usage/",
        "/admin/jobs/cmpl-1/",
        "/admin/completions/apikey/",
        f"/admin/completions/apikey/{owner.key.pk}/change/",
        "/admin/completions/usagerecord/",
        "/admin/completions/usagehour/",
        "/admin/completions/batch/",
        "/admin/completions/file/",
        "/admin/completions/auditentry/",
    ):
        assert user.get(path).status_code == 200, path
    allowed = 200 if may else 403
    assert user.get("/admin/completions/apikey/add/").status_code == allowed
    change = f"/admin/completions/apikey/{owner.key.pk}/change/"
    page = user.get(change).content.decode()
    assert ('name="_save"' in page) is may
    assert ("Rotate secret" in page) is may
    for path in (
        f"/admin/keys/{owner.key.pk}/revoke/",
        f"/admin/keys/{owner.key.pk}/rotate/",
    ):
        assert (user.post(path).status_code != 403) is may
    if not may:
        for path in (
            "jobs/cmpl-1/cancel/",
            "jobs/cmpl-1/requeue/",
            "workers/w/drain/",
            "workers/w/resume/",
            "batches/b/cancel/",
        ):
            assert user.post(f"/admin/{path}").status_code == 403
        owner.key.refresh_from_db()
        assert owner.key.revoked_at is None


EMPTY = ["apikey", "auditentry", "batch", "file", "organization", "refusal", "session", "usagehour",
         "usagerecord", "webhookdelivery", "webhookendpoint", "wrongkey"]  # fmt: skip


@pytest.mark.represented_by("apikey", "batch")
@pytest.mark.parametrize("table", EMPTY)
def test_a_list_without_rows_says_how_they_come_to_be(admin: Client, table: str) -> None:
    page = admin.get(f"/admin/completions/{table}/").content.decode()
    said = django_admin.site._registry[apps.get_model("completions", table)].empty_text  # type: ignore[attr-defined]
    assert said
    assert f"<p>{said}</p>" in page
    assert "Nothing matches" not in page
    adds = table in ("apikey", "batch", "organization", "webhookendpoint")
    assert (">Add one</a>" in page) is adds


def test_a_search_without_a_match_says_what_can_be_searched_for(
    admin: Client, owner: Tenant
) -> None:
    page = admin.get("/admin/completions/apikey/?q=nobody").content.decode()
    assert "Nothing matches “nobody”." in page
    assert "What can be searched for: A name, or how a secret begins" in page
    page = admin.get("/admin/completions/batch/?status__exact=failed").content.decode()
    assert "Nothing matches these filters." in page
