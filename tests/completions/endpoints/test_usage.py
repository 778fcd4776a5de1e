"""GET /v1/usage: access, time ranges, groups."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import SERVICE
from completions.models import ApiKey, UsageHour
from completions.usage import refusals
from completions.usage.refusals import RefusalCounter
from tests.completions.conftest import Tenant

TODAY = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)


def use(tenant: Tenant, hour: datetime = TODAY, key: ApiKey | None = None, **changes: Any) -> None:
    counts = {"requests": 1, "prompt_tokens": 10, "completion_tokens": 5, "cost_nanos": 1500}
    UsageHour.objects.create(
        organization=tenant.organization,
        api_key=key or tenant.key,
        hour=hour,
        **{"model": "tiny", **counts, **changes},
    )


def results(client: Client, **query: Any) -> list[dict[str, Any]]:
    response = client.get("/v1/usage", query)
    assert response.status_code == 200, response.content
    return [row for bucket in response.json()["data"] for row in bucket["results"]]


def test_a_key_sees_its_own_by_day_model_and_key(
    api: Client, owner: Tenant, stranger: Tenant
) -> None:
    other, _ = changes.create(owner.organization, "other")
    use(owner, cached_tokens=3, forced_tokens=2, failed=1, latency_4=1, first_token_0=1)
    use(owner, model="texts")
    use(owner, key=other)
    use(stranger)
    texts, tiny = sorted(results(api), key=lambda row: row["model"])
    assert (texts["model"], texts["api_key_name"]) == ("texts", "owner's key")
    assert tiny["api_key_id"] == f"sk-{owner.key.public_id}"
    assert (tiny["input_tokens"], tiny["output_tokens"]) == (10, 5)
    assert (tiny["input_cached_tokens"], tiny["forced_tokens"]) == (3, 2)
    assert (tiny["num_model_requests"], tiny["num_failed_requests"]) == (1, 1)
    assert tiny["cost"] == 1.5e-6
    assert tiny["latency_ms"] == {"p50": 150.0, "p95": 195.0}
    assert tiny["adapter"] is None  # not grouped by


def test_an_admin_key_sees_its_organization_and_no_other(
    api: Client, owner: Tenant, stranger: Tenant
) -> None:
    other, _ = changes.create(owner.organization, "other")
    ApiKey.objects.filter(pk=owner.key.pk).update(role="admin")
    use(owner)
    use(owner, key=other)
    use(stranger)
    assert {row["api_key_name"] for row in results(api)} == {"owner's key", "other"}
    (row,) = results(api, group_by="")
    assert row["num_model_requests"] == 2
    assert row["api_key_id"] is row["model"] is None
    (row,) = results(api, api_key_ids=f"sk-{other.public_id}")
    assert row["api_key_name"] == "other"
    changes.rotate(other, timedelta(hours=1), SERVICE)
    (same,) = results(api, api_key_ids=f"sk-{other.public_id}")  # the previous secret's
    assert same["api_key_id"] == f"sk-{ApiKey.objects.get(pk=other.pk).public_id}"
    assert results(api, api_key_ids="sk-") == []
    assert results(api, api_key_ids=f"sk-{stranger.key.public_id}") == []


def test_a_key_cannot_read_the_usage_of_other_keys(api: Client, owner: Tenant) -> None:
    other, _ = changes.create(owner.organization, "other")
    use(owner, key=other)
    assert results(api, api_key_ids=f"sk-{other.public_id}") == []


def test_buckets_and_pages(api: Client, owner: Tenant) -> None:
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    for day in (0, 1, 4):
        use(owner, begin + timedelta(days=day, hours=5))
        use(owner, begin + timedelta(days=day, hours=7), model="texts")
    query = {
        "start_time": int(begin.timestamp()) + 60,
        "end_time": int(begin.timestamp()) + 5 * 86400,
        "limit": 2,
        "group_by": "model",
    }
    seen, page = [], {}
    while True:
        body = api.get("/v1/usage", {**query, **page}).json()
        seen += [(bucket["start_time"], len(bucket["results"])) for bucket in body["data"]]
        if not body["has_more"]:
            break
        page = {"page": body["next_page"]}
    assert seen == [(int(begin.timestamp()) + d * 86400, n) for d, n in enumerate([2, 2, 0, 0, 2])]
    assert body["next_page"] is None
    hours = api.get(
        "/v1/usage",
        {"start_time": query["start_time"], "bucket_width": "1h", "limit": 8, "models": "tiny"},
    ).json()
    assert [len(bucket["results"]) for bucket in hours["data"]] == [0, 0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    "form", [{"group_by[]": ["adapter", "model"]}, {"group_by": "adapter,model"}]
)
def test_usage_is_grouped_by_model_and_adapter(
    api: Client, owner: Tenant, form: dict[str, Any]
) -> None:
    use(owner)
    use(owner, adapter="polite")
    rows = results(api, **form)
    assert {(row["model"], row["adapter"]) for row in rows} == {("tiny", ""), ("tiny", "polite")}
    assert {row["api_key_id"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bucket_width", "1m"),
        ("group_by", "user_id"),
        ("limit", "32"),
        ("limit", "0"),
        ("start_time", "yesterday"),
        ("start_time", "9" * 12),
        ("end_time", "1"),
        ("page", "2"),
        ("page", "page_x"),
    ],
)
def test_bad_queries(api: Client, name: str, value: str) -> None:
    response = api.get("/v1/usage", {name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize("width", ["1d", "1h"])
def test_an_end_before_the_start_is_refused_within_a_bucket(api: Client, width: str) -> None:
    start = int(TODAY.timestamp()) + 1800
    for end in (start, start - 60):
        query = {"start_time": start, "end_time": end, "bucket_width": width}
        error = api.get("/v1/usage", query).json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "end_time")
        assert str(start) in error["message"]
    assert results(api, start_time=start, end_time=start + 60, bucket_width=width) == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"project_ids": "p"}, "unsupported_parameter"),
        ({"project_ids[]": ["p", "q"]}, "unsupported_parameter"),
        ({"user_ids": "u"}, "unsupported_parameter"),
        ({"batch": "yes"}, "invalid_value"),
        ({"model": "tiny"}, "unknown_parameter"),
        ({"limit[]": "1"}, "unknown_parameter"),
    ],
)
def test_filters_without_effect_are_refused(api: Client, query: dict[str, Any], code: str) -> None:
    refused = api.get("/v1/usage", query)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, code)
    assert error["param"] == next(iter(query))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [("true", ["a", "b"]), ("false", ["live", "old"]), ("batch_a", ["a"]), ("batch_c", [])],
)
def test_lines_of_batches_are_told_apart(
    api: Client, owner: Tenant, batch: str, expected: list[str]
) -> None:
    for name in ("a", "b"):
        use(owner, model=name, kind="batch", batch=f"batch_{name}")
    use(owner, model="live", kind="sync")
    use(owner, model="old", kind="")
    assert sorted(row["model"] for row in results(api, batch=batch)) == expected


def test_a_page_past_the_end_is_empty(api: Client) -> None:
    body = api.get("/v1/usage", {"page": "page_99999999999"}).json()
    assert (body["data"], body["has_more"]) == ([], False)


def test_it_needs_its_scope(api: Client, owner: Tenant) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(scopes=["inference"])
    assert api.get("/v1/usage").status_code == 403


@pytest.mark.parametrize(
    "query",
    [
        {"start_time": "253402214400", "end_time": "253402300799"},  # dates end with that day
        {"start_time": "253402300799", "bucket_width": "1h"},
        {"models": ",".join("a" * 101)},
        {"api_key_ids": "," * 3 + "a," * 101},
    ],
)
def test_extreme_times_and_long_lists_are_refused(api: Client, query: dict[str, str]) -> None:
    response = api.get("/v1/usage", query)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")


def test_refusals_by_key_and_code(api: Client, owner: Tenant, stranger: Tenant) -> None:
    day = TODAY - timedelta(days=1)  # two o'clock today may be yet to come
    counts = iter([day + timedelta(minutes=1), day + timedelta(hours=2)] * 2)
    counter = RefusalCounter(lambda: next(counts))
    for tenant, messages in ((owner, ("first", "latest")), (stranger, ("other", "other"))):
        for message in messages:
            key = (tenant.organization.pk, tenant.key.pk)
            counter.count(*key, "invalid_value", message, "req_1")
    refusals.store(counter.take())
    row = {
        "object": "refusals",
        "code": "invalid_value",
        "message": "latest",
        "request_id": "req_1",
        "api_key_id": f"sk-{owner.key.public_id}",
        "api_key_name": "owner's key",
        "last_at": int((day + timedelta(hours=2)).timestamp()),
    }
    bucket = api.get("/v1/usage").json()["data"][-2]
    assert (bucket["results"], bucket["refusals"]) == ([], [{**row, "count": 2}])
    query = {"bucket_width": "1h", "start_time": int(day.timestamp()), "limit": 3}
    hours = api.get("/v1/usage", query).json()["data"]
    assert [sum(each["count"] for each in hour["refusals"]) for hour in hours] == [1, 0, 1]
    others = api.get("/v1/usage", {"api_key_ids": f"sk-{stranger.key.public_id}"}).json()
    assert [bucket["refusals"] for bucket in others["data"] if bucket["refusals"]] == []
