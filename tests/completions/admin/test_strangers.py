"""Every page of the admin and the console, found in the URL table, as a member of one organization
who names the rows of another: the page refuses, or shows nothing of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.http import HttpResponseBase
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import SERVICE
from completions.models import (
    ApiKey,
    AuditEntry,
    Batch,
    MemberRole,
    Preset,
    Refusal,
    Session,
    UsageHour,
    UsageRecord,
)
from tests.completions.admin.members import join, sign_in
from tests.completions.conftest import Tenant, new_tenant
from tests.completions.console.batch_of_results import ended_batch

SECRET = "hidden-tenant"
LEAVES = {"admin/logout/", "admin/login/"}
"""Pages that end the session."""
OPERATORS = {"workers", "models", "drain", "resume", "requeue"}
"""Names of pages that no member opens."""


@dataclass(frozen=True)
class Page:
    route: str
    name: str
    model: str
    """The table of an admin page; empty for others."""


def walk(patterns: list[Any], route: str = "") -> Iterator[Page]:
    for each in patterns:
        here = f"{route}{each.pattern}"
        if isinstance(each, URLResolver):
            yield from walk(each.url_patterns, here)
        elif isinstance(each, URLPattern) and here.startswith("admin/"):
            model = getattr(getattr(each.callback, "model_admin", None), "model", None)
            yield Page(here, each.name or "", model._meta.label if model else "")


PAGES = list(walk(get_resolver().url_patterns))


def new_rows(tenant: Tenant) -> dict[str, str]:
    """Give the tenant a row of each table. Returns the id by label of the model."""
    now = timezone.now()
    whose = {"organization": tenant.organization, "api_key": tenant.key}
    batch = ended_batch(tenant.key, 10)
    Batch.objects.filter(pk=batch.pk).update(model=SECRET)
    record = UsageRecord.objects.create(
        **whose,
        job_id=f"cmpl-{SECRET}",
        request_id=f"req-{SECRET}",
        model="tiny",
        kind="call",
        status="completed",
        created_at=now,
        finished_at=now,
    )
    UsageHour.objects.create(**whose, hour=now, model="tiny", requests=1)
    Refusal.objects.create(**whose, hour=now, code="x", count=1, at=now, message=SECRET)
    Session.objects.create(**whose, id="sess-hers", model="tiny", seconds=60, expires_at=now)
    user = join(tenant.organization, f"{SECRET}-user")
    Preset.objects.create(
        organization=tenant.organization, user=user, name=SECRET, draft={"values": {"stop": SECRET}}
    )
    ids = {}
    for model in apps.get_models():
        if model._meta.app_label == "completions":
            names = {field.name for field in model._meta.fields}
            rows = model._default_manager.all()
            if "organization" in names:
                rows = rows.filter(organization=tenant.organization)
            if (row := rows.first()) is not None:
                ids[model._meta.label] = str(row.pk)
    ids |= {
        "completions.Organization": str(tenant.organization.pk),
        "job": record.job_id,
        "batch": batch.pk,
        "preset": ids["completions.Preset"],
        "key": str(tenant.key.pk),
    }
    return ids


def fill(page: Page, ids: dict[str, str]) -> str:
    """The page's address with the rows' ids. A parameter that is not known here fails."""
    values = {
        "<path:object_id>": ids.get(page.model, "1"),
        "<str:job_id>": ids["job"],
        "<str:batch_id>": ids["batch"],
        "<int:key_id>": ids["key"],
        "<str:preset_id>": ids["preset"],
        "<str:worker_id>": "worker-1",
        "<int:number>": "1",
        "<id>": ids.get(page.model, "1"),
        "<path:content_type_id>": "1",
        "<int:content_type_id>": "1",
        "<str:object_id>": "1",
        "^(?P<app_label>auth|completions)/$": "completions/",
        "^(?P<app_label>completions|auth)/$": "completions/",
        "(?P<url>.*)$": "nothing",
    }
    route = page.route
    for name, value in values.items():
        route = route.replace(name, value)
    assert not set("<>^$(") & set(route), f"say in `fill` which row of a stranger names {route}"
    return f"/{route}"


def read(response: HttpResponseBase) -> str:
    if response.streaming:
        return ""
    return response.content.decode(errors="replace")


@pytest.fixture
def hidden(served: None, db: None) -> dict[str, str]:
    return new_rows(new_tenant(SECRET))


@pytest.fixture(params=[MemberRole.MEMBER, MemberRole.ADMIN])
def outsider(request: pytest.FixtureRequest, owner: Tenant) -> Client:
    return sign_in(join(owner.organization, "outsider", request.param))


@pytest.mark.represented_by("member-get")
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_stranger_sees_nothing(method: str, outsider: Client, hidden: dict[str, str]) -> None:
    shown = {page.route: find_leak(outsider, method, page, hidden) for page in PAGES}
    assert {route: leak for route, leak in shown.items() if leak} == {}


def find_leak(outsider: Client, method: str, page: Page, hidden: dict[str, str]) -> str:
    """Return what a page shows of the hidden rows; nothing if it is as it should be."""
    path = fill(page, hidden)
    if page.route in LEAVES:
        return ""
    response = getattr(outsider, method)(path, headers={"X-Quire-Key": hidden["key"]})
    if response.status_code not in (200, 302, 400, 401, 403, 404, 405):
        return f"answers {response.status_code}"
    if page.name in OPERATORS and response.status_code not in (403, 405):
        return "is for operators"
    if response.status_code == 200 and "<" in page.route and page.model:
        return "shows a row"
    shown = read(response).replace(path, "").replace(hidden["job"], "")
    shown = re.sub("with ID “[^”]*” doesn", "", shown)  # Django repeats what the user typed
    at = max(shown.find(SECRET), shown.find(hidden["batch"]))
    return "" if at < 0 else shown[max(0, at - 80) : at + 80]


@pytest.mark.represented_by("member")
def test_a_stranger_changes_nothing(outsider: Client, hidden: dict[str, str]) -> None:
    def state() -> list[Any]:
        tables = (ApiKey, Batch, AuditEntry, Preset)
        return [list(model._default_manager.order_by("pk").values()) for model in tables]

    before = state()
    for page in PAGES:
        if "<" in page.route:
            outsider.post(fill(page, hidden), {"grace": "0", "post": "yes"})
    assert state() == before


TABLES = [
    f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    for model in admin.site._registry
    if model._meta.app_label == "completions"
]


@pytest.mark.represented_by("member")
def test_lists_searches_filters_and_exports_show_own_rows_only(
    outsider: Client, owner: Tenant, hidden: dict[str, str]
) -> None:
    own = new_tenant("visible-tenant")
    join(own.organization, "outsider")
    changes.create(own.organization, "visible-key", SERVICE)
    paths = [
        *TABLES,
        *(f"{path}?q={SECRET}" for path in TABLES),
        f"/admin/search/?s={SECRET}",
        f"/admin/search/?s={SECRET}&extended=1",
        f"/admin/search/?s={hidden['job']}&extended=1",
        f"/admin/search/?s={hidden['batch']}&extended=1",
        "/admin/usage/?by=organization",
        "/admin/usage/?by=key",
        "/admin/usage/?by=batch",
        "/admin/usage.csv?by=key",
        f"/admin/usage/?organization={hidden['completions.Organization']}&by=key",
        f"/admin/completions/apikey/add/?like={hidden['key']}",
        f"/admin/playground/?job={hidden['job']}",
        f"/admin/playground/?preset={hidden['preset']}",
        "/admin/live/",
    ]
    seen = 0
    for path in paths:
        response = outsider.get(path)
        assert response.status_code in (200, 302, 403), path
        shown = read(response).replace(path, "").replace(f'value="{SECRET}"', "")
        assert f"{SECRET}</" not in shown, path
        assert f"{SECRET}&#x27;s" not in shown, path
        assert f'"stop": "{SECRET}' not in shown, path
        seen += "visible-" in shown
    assert seen >= 3  # the user sees what is theirs
