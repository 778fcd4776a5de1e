"""The panel that explores usage: figures, groups, budgets, and what a user without the permission
gets."""

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from html import unescape

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from completions.admin.usage.figures import SHOWN
from completions.models import ApiKey, Batch, Organization, UsageHour
from completions.models.usage import NANOS
from tests.completions.conftest import Tenant

PAGE, CSV = "/admin/usage/", "/admin/usage.csv"


def midnight() -> datetime:
    return timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)


def use(tenant: Tenant, days_ago: int = 0, **changes: object) -> None:
    fields: dict[str, object] = {
        "organization": tenant.organization, "api_key": tenant.key, "model": "m", "kind": "sync",
        "hour": midnight() - timedelta(days=days_ago), "requests": 2, "prompt_tokens": 700,
        "completion_tokens": 300, "cost_nanos": NANOS,
    }  # fmt: skip
    UsageHour.objects.create(**{**fields, **changes})


def charts(page: str) -> list[dict[str, list[dict[str, object]]]]:
    return [json.loads(unescape(data)) for data in re.findall(r'data-value="([^"]+)"', page)]


def stacks(page: str) -> dict[str, list[float]]:
    return {each["label"]: each["data"] for each in charts(page)[0]["datasets"]}  # type: ignore[misc]


def lines(client: Client, query: str) -> list[dict[str, str]]:
    response = client.get(f"{CSV}?{query}")
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_groups_are_stacked_by_day_and_listed(
    admin: Client, owner: Tenant, stranger: Tenant
) -> None:
    use(owner, 1)
    use(owner, 1, model="other")
    use(stranger, 0, prompt_tokens=1)
    page = admin.get(f"{PAGE}?range=7d&by=organization").content.decode()
    assert stacks(page) == {
        "owner": [0, 0, 0, 0, 0, 2000, 0], "stranger": [0, 0, 0, 0, 0, 0, 301],
    }  # fmt: skip
    assert page.index(">owner<") < page.index(">stranger<")
    models = admin.get(f"{PAGE}?range=7d&by=model&organization={owner.organization.pk}")
    assert {name: sum(values) for name, values in stacks(models.content.decode()).items()} == {
        "m": 1000, "other": 1000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("key", {"owner's key": 3000}),
        ("adapter", {"no adapter": 2000, "polite": 1000}),
        ("kind", {"sync": 2000, "batch": 1000}),
        ("batch", {"no batch": 2000, "batch_x": 1000}),
    ],
)
def test_each_dimension(admin: Client, owner: Tenant, by: str, names: dict[str, int]) -> None:
    use(owner)
    use(owner, 1, adapter="polite")
    use(owner, 2, kind="batch", batch="batch_x")
    page = admin.get(f"{PAGE}?range=7d&by={by}").content.decode()
    assert {name: sum(values) for name, values in stacks(page).items()} == names
    assert "recorded from" not in page


@pytest.mark.parametrize(
    ("show", "total"),
    [
        ("tokens", 1000),
        ("input", 700),
        ("output", 300),
        ("requests", 2),
        ("failed", 1),
        ("cost", 1),
    ],
)
def test_each_measure(admin: Client, owner: Tenant, show: str, total: int) -> None:
    use(owner, failed=1)
    page = admin.get(f"{PAGE}?range=today&show={show}").content.decode()
    assert sum(stacks(page)["owner"]) == total


def test_a_filter_for_no_adapter_is_one(admin: Client, owner: Tenant) -> None:
    use(owner)
    use(owner, 0, adapter="polite", prompt_tokens=1)
    page = admin.get(f"{PAGE}?range=7d&by=model&adapter=").content.decode()
    assert sum(stacks(page)["m"]) == 1000
    assert "Adapter: no adapter" in page


def test_totals_compare_with_as_long_a_time_before(admin: Client, owner: Tenant) -> None:
    use(owner, 1, requests=6)
    use(owner, 7 + 1, requests=4)
    use(owner, 20, requests=100)
    page = admin.get(f"{PAGE}?range=7d&show=requests").content.decode()
    assert re.search(r"<dt>Requests</dt><dd>6 <small>\+50 %</small>", page)
    assert page.count("+50 %") == 3  # of all, of the organization, and of the table's total


def test_many_groups_share_the_last_colour_and_have_lines_in_the_csv(
    admin: Client, owner: Tenant
) -> None:
    for number in range(SHOWN + 3):
        use(owner, model=f"m{number}", prompt_tokens=1000 - number, completion_tokens=0)
    page = admin.get(f"{PAGE}?range=7d&by=model").content.decode()
    assert len(stacks(page)) == SHOWN + 1
    assert sum(stacks(page)["all others"]) == 993 + 992 + 991
    assert len(lines(admin, "range=7d&by=model")) == SHOWN + 3


def test_the_csv_has_what_is_shown(admin: Client, owner: Tenant, stranger: Tenant) -> None:
    use(owner)
    use(owner, 3, model="other")
    use(stranger)
    (day, now) = lines(admin, f"range=7d&by=key&key={owner.key.pk}")
    assert (day["api_key_name"], day["organization"]) == ("owner's key", "owner")
    assert (now["prompt_tokens"], now["cost"]) == ("700", "1")
    assert day["start"] == (midnight() - timedelta(days=3)).isoformat()
    (months,) = lines(admin, f"from={midnight():%Y-%m-01}&per=month&by=kind&model=m")
    assert (months["kind"], months["requests"]) == ("sync", "4")
    page = admin.get(f"{PAGE}?range=7d&by=key").content.decode()
    assert "/admin/usage.csv?range=7d&amp;by=key&amp;show=tokens" in page


@pytest.mark.parametrize("path", [PAGE, CSV])
def test_what_no_view_has_is_said(admin: Client, path: str) -> None:
    for query, said in (("by=color", "by=color: use"), ("models=a", "models: there is no such")):
        response = admin.get(f"{path}?{query}")
        assert response.status_code == 400
        assert said in response.content.decode()


def test_no_use_says_so(admin: Client, owner: Tenant) -> None:
    page = admin.get(f"{PAGE}?model=none").content.decode()
    assert "Nothing was used in this time. Choose another range, or remove a filter." in page
    assert "A projection needs 3 whole days of use." in page


def test_budgets_are_lines_where_the_view_shows_all_that_they_limit(
    admin: Client, owner: Tenant
) -> None:
    use(owner)
    ApiKey.objects.filter(pk=owner.key.pk).update(daily_token_budget=5000, monthly_cost_budget=7)
    Organization.objects.update(monthly_token_budget=90_000)
    of_key = f"{PAGE}?range=7d&key={owner.key.pk}"
    assert stacks(admin.get(f"{of_key}&by=model").content.decode())["daily budget"] == [5000] * 7
    for query in ("&model=m", "&per=hour", "&show=requests", "&show=cost"):
        assert "daily budget" not in stacks(admin.get(of_key + query).content.decode())
    month = charts(admin.get(f"{of_key}&show=cost").content.decode())[1]["datasets"][-1]
    assert (month["label"], set(month["data"])) == ("monthly budget", {7})  # type: ignore[call-overload]
    whole = f"{PAGE}?range=7d&organization={owner.organization.pk}"
    assert charts(admin.get(whole).content.decode())[1]["datasets"][-1]["data"][0] == 90_000  # type: ignore[index]


def test_the_month_is_projected_with_its_error(admin: Client, owner: Tenant) -> None:
    for days_ago in range(28):
        use(owner, days_ago)
    Organization.objects.update(monthly_token_budget=100)
    page = admin.get(f"{PAGE}?organization={owner.organization.pk}").content.decode()
    assert re.search(r"so far; [0-9.]+k expected at the end of the month, with 80 % from", page)
    assert re.search(r"The monthly budget of 100 is reached on [A-Z][a-z]{2} [0-9]+, as", page)
    labels = [each["label"] for each in charts(page)[1]["datasets"]]
    assert labels == ["used", "expected", "low", "high", "monthly budget"]


def test_it_says_since_when_kinds_and_batches_are_recorded(admin: Client, owner: Tenant) -> None:
    use(owner, 3, kind="")
    assert "from the next request on" in admin.get(f"{PAGE}?by=kind").content.decode()
    use(owner, 1)
    since = f"recorded from {midnight() - timedelta(days=1):%Y-%m-%d %H:%M} UTC on"
    page = admin.get(f"{PAGE}?by=kind").content.decode()
    assert since in page
    assert stacks(page).keys() == {"sync", "not recorded"}
    assert since in admin.get(f"{PAGE}?by=model&batch=").content.decode()
    for query in ("by=model", "by=kind&range=today"):
        assert "are recorded from" not in admin.get(f"{PAGE}?{query}").content.decode()


def test_pages_of_owners_have_the_panel_of_their_own(
    admin: Client, owner: Tenant, stranger: Tenant
) -> None:
    batch = Batch.objects.create(
        organization=owner.organization, api_key=owner.key, endpoint="/v1/completions", model="m",
        job_prefix="cmpl-", input_file_id="f", completion_window="24h", output_seconds=1,
        status="completed", created_at=midnight() - timedelta(days=400),
        ended_at=midnight() - timedelta(days=399), expires_at=midnight(),
    )  # fmt: skip
    use(owner, 2, model="mine")
    use(owner, 399, kind="batch", batch=batch.id, model="lines")
    use(stranger, 2, model="theirs")
    for path, shown in (
        (f"organization/{owner.organization.pk}", {"owner's key"}),
        (f"apikey/{owner.key.pk}", {"mine"}),
        (f"batch/{batch.id}", {"lines"}),
    ):
        page = admin.get(f"/admin/completions/{path}/change/").content.decode()
        assert stacks(page).keys() == shown
    free = f"{PAGE}?range=30d&amp;by=model&amp;show=tokens&amp;key={owner.key.pk}"
    change = f"/admin/completions/apikey/{owner.key.pk}/change/"
    assert free in admin.get(change).content.decode()
    page = admin.get(f"{change}?range=7d&by=kind&show=requests").content.decode()
    assert stacks(page) == {"sync": [0, 0, 0, 0, 2, 0, 0]}
    assert "by=color: use" in admin.get(f"{change}?by=color").content.decode()


def test_without_the_permission_there_is_no_panel(
    in_role: Callable[[str], Client], owner: Tenant
) -> None:
    use(owner)
    assert "owner" in in_role("Viewer").get(PAGE).content.decode()
    clerk = User.objects.create_user("clerk", password="x", is_staff=True)
    names = ("view_apikey", "view_organization", "view_batch")
    clerk.user_permissions.add(*Permission.objects.filter(codename__in=names))
    client = Client()
    client.force_login(clerk)
    assert client.get(PAGE).status_code == client.get(CSV).status_code == 403
    page = client.get(f"/admin/completions/apikey/{owner.key.pk}/change/")
    assert page.status_code == 200
    assert "data-value" not in page.content.decode()
