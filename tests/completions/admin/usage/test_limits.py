"""How much of their limits keys and organizations use."""

import re

import pytest
import redis
from django.conf import settings
from django.test import Client

from completions.jobs.store import Keys
from completions.models import ApiKey, Batch, Organization, UsageHour
from tests.completions.admin.usage.test_panel import PAGE, midnight
from tests.completions.conftest import Tenant


def uses(page: str) -> list[str]:
    """The uses in the order of the page, each with the width of its bar."""
    found = re.findall(r'style="width:(\d+)%"></i></span><small>([^<]*)</small>', page)
    return [f"{text}: {width}" for width, text in found]


@pytest.mark.integration
def test_rates_places_and_budgets(admin: Client, owner: Tenant, live: redis.Redis) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(
        requests_per_minute=1, tokens_per_minute=600, max_concurrency=4, daily_token_budget=2000,
        monthly_cost_budget=2, max_enqueued_tokens=100,
    )  # fmt: skip
    Organization.objects.update(monthly_token_budget=1000)
    UsageHour.objects.create(
        organization=owner.organization, api_key=owner.key, model="m", hour=midnight(),
        prompt_tokens=940, completion_tokens=10, cost_nanos=10**9,
    )  # fmt: skip
    for status in ("in_progress", "completed"):
        Batch.objects.create(
            organization=owner.organization, api_key=owner.key, endpoint="/v1/completions",
            job_prefix="cmpl-", input_file_id="f", completion_window="24h", output_seconds=1,
            status=status, enqueued_tokens=40, expires_at=midnight(), created_at=midnight(),
        )  # fmt: skip
    now, keys = live.time()[0], Keys(settings.REDIS_PREFIX)
    live.hset(keys.limits(owner.key.pk), mapping={"at": now + 60, "requests": 1, "tokens": 150})
    live.zadd(keys.busy(owner.key.pk), {"running": now + 100, "gone": now - 100})
    assert uses(admin.get(PAGE).content.decode()) == [
        "950 of 1k tokens this month: 95",
        "0 of 1 req/min: 0",
        "450 of 600 tok/min: 75",
        "1 of 4 at once: 25",
        "950 of 2k tokens today: 48",
        "1.00 of 2.00 cost this month: 50",
        "40 of 100 prompt tokens in batches: 40",
    ]
    of_key = admin.get(f"/admin/completions/apikey/{owner.key.pk}/change/").content.decode()
    assert len(uses(of_key)) == 7


@pytest.mark.integration
def test_a_bucket_refills(admin: Client, owner: Tenant, live: redis.Redis) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(tokens_per_minute=6000)
    bucket = {"at": live.time()[0] - 3600, "tokens": 0}
    live.hset(Keys(settings.REDIS_PREFIX).limits(owner.key.pk), mapping=bucket)
    assert uses(admin.get(PAGE).content.decode()) == ["0 of 6k tok/min: 0"]


def test_without_redis_budgets_are_shown(admin: Client, owner: Tenant) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(max_concurrency=4, daily_token_budget=2000)
    assert uses(admin.get(PAGE).content.decode()) == ["0 of 2k tokens today: 0"]


def test_without_limits_it_says_so(admin: Client, owner: Tenant, stranger: Tenant) -> None:
    ApiKey.objects.filter(pk=stranger.key.pk).update(daily_token_budget=2000)
    page = admin.get(f"{PAGE}?key={owner.key.pk}").content.decode()
    assert "No limits or budgets are set." in page
    assert uses(page) == []
