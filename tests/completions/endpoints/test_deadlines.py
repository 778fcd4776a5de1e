"""Background jobs with a window, and flexible requests."""

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from completions.delivery import forecasts
from completions.jobs import durable
from completions.jobs.sharding.shards import Shards
from completions.jobs.store import JobStore
from completions.models import Job, JobStatus, UsageRecord
from tests.completions.jobs.job_making import new_job
from tests.completions.live_api import PREFIX

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def run_requests(owner: Any, tokens: int = 100) -> None:
    """Record that the model took a second for each request of so many tokens."""
    now = timezone.now()
    UsageRecord.objects.bulk_create(
        UsageRecord(
            job_id=f"cmpl-before-{n}", organization=owner.organization, api_key=owner.key,
            model="tiny", kind="background", status=JobStatus.COMPLETED, run_ms=1000,
            created_at=now, completion_tokens=tokens, finished_at=now + timedelta(seconds=n),
        )
        for n in range(10)
    )  # fmt: skip


def fields(live: Any, job_id: str) -> dict[str, Any]:
    found = live.redis.hgetall(f"{PREFIX}job:{job_id}")
    return {name.decode(): value.decode(errors="replace") for name, value in found.items()}


def error_of(answer: Any) -> tuple[str, str]:
    assert answer.status_code == 400, answer.content
    error = json.loads(answer.content)["error"]
    return error["code"], error["param"]


@pytest.mark.wide
def test_jobs_that_come_together_are_not_promised_the_same_window(run_apart: Any) -> None:
    assert run_apart("jobs_together") == ["stored"] + ["window_too_short"] * 3 + ["1"]


async def test_a_job_fails_at_the_end_of_its_window(live: Any) -> None:
    live.at_once = False
    answer = await live.post(background=True, completion_window="5m")
    assert answer.status_code == 202
    body = json.loads(answer.content)
    assert body["deadline"] == {"ends_at": pytest.approx(time.time() + 300, abs=5),
                                "done_by": None, "probability": None}  # fmt: skip
    stored = fields(live, body["id"])
    assert float(stored["deadline"]) == pytest.approx(time.time() + 300, abs=5)
    row = await Job.objects.aget(id=body["id"])
    assert (row.deadline_at - row.created_at).total_seconds() == pytest.approx(300, abs=5)
    assert stored["level"] == "2"


async def test_the_answer_has_a_forecast_that_grows_with_the_queue(live: Any, owner: Any) -> None:
    await sync_to_async(run_requests)(owner)
    live.at_once = False
    found = []
    for _ in range(20):
        answer = await live.post(background=True, completion_window="30m", max_tokens=50)
        deadline = json.loads(answer.content)["deadline"]
        found.append(deadline["done_by"] - time.time())
        assert deadline["probability"] > 0.9
    assert 0 < found[0] < 10
    assert found[-1] > found[0] + 10
    row = await Job.objects.alatest("created_at")
    assert row.promise is not None
    assert row.promise["seconds"] == pytest.approx(0.5 + 19, abs=1)


async def test_a_late_job_is_refused_and_leaves_nothing(live: Any, owner: Any) -> None:
    await sync_to_async(run_requests)(owner, tokens=1)  # a second for each
    late = {"background": True, "completion_window": "1m", "max_tokens": 60}
    refused = await live.post(**late, on_late="refuse")
    assert error_of(refused) == ("window_too_short", "completion_window")
    assert "done by" in json.loads(refused.content)["error"]["message"]
    assert not await Job.objects.aexists()
    assert live.redis.keys(f"{PREFIX}job:*") == []
    accepted = await live.post(**late)
    assert accepted.status_code == 202
    assert json.loads(accepted.content)["deadline"]["probability"] < 0.9


async def test_errors_of_earlier_forecasts_count(live: Any, owner: Any) -> None:
    await sync_to_async(run_requests)(owner)
    for n in range(40):
        began = timezone.now() - timedelta(hours=1, seconds=n)
        await Job.objects.acreate(
            id=f"cmpl-{n}", organization=owner.organization, api_key=owner.key, model="tiny",
            status=JobStatus.COMPLETED, request={}, context={}, ttl=60, created_at=began,
            deadline_at=began, finished_at=began + timedelta(seconds=300), promise={"seconds": 1},
        )  # fmt: skip
    live.at_once = False
    answer = await live.post(background=True, completion_window="1m", on_late="refuse")
    assert error_of(answer) == ("window_too_short", "completion_window")


async def test_a_shorter_window_goes_first_for_its_key(live: Any) -> None:
    live.at_once = False
    ids = {}
    for name, window in (("usual", None), ("short", "5m"), ("long", "2d"), ("hour", "60m")):
        more = {} if window is None else {"completion_window": window}
        answer = await live.post(background=True, **more)
        ids[json.loads(answer.content)["id"]] = name
    (queue,) = live.redis.keys(f"{PREFIX}waiting:2:*")
    order = [ids[each.decode()] for each in live.redis.zrange(queue, 0, -1)]
    assert order == ["short", "usual", "long", "hour"]


async def test_a_lost_job_keeps_its_turn(live: Any) -> None:
    live.at_once = False
    answer = await live.post(background=True, completion_window="5m", service_tier="flex")
    job_id = json.loads(answer.content)["id"]
    before = fields(live, job_id)
    live.redis.flushall()
    await Job.objects.aupdate(created_at=timezone.now() - timedelta(seconds=30))
    restored = await sync_to_async(durable.resubmit_lost)(
        Shards.make_single(JobStore(live.redis, PREFIX)), timezone.now()
    )
    assert restored == 1
    after = fields(live, job_id)
    assert after["level"] == before["level"] == "3"
    assert float(after["head_start"]) == pytest.approx(float(before["head_start"]), abs=31)


@pytest.mark.parametrize("path", ["/v1/completions", CHAT, RESPONSES])
async def test_flexible_jobs_run_with_the_lines_of_batches(live: Any, path: str) -> None:
    live.at_once = False
    body = {"prompt": [65]} if path == "/v1/completions" else {}
    key, text = ("messages", [{"role": "user", "content": "a"}]), ("input", "a")
    body |= dict([key] if path == CHAT else [text] if path == RESPONSES else [])
    given = {"model": "tiny", **body, "background": True, "service_tier": "flex"}
    answer = await live.http.post(path, json.dumps(given), content_type="application/json")
    assert answer.status_code in (200, 202), answer.content
    found = json.loads(answer.content)
    assert found["deadline"]["ends_at"] == pytest.approx(time.time() + 3600, abs=5)
    stored = fields(live, found["id"])
    assert (stored["level"], stored["priority"]) == ("3", "9")
    assert json.loads(stored["request"])["priority"] == -1_000_000
    assert "x-ignored-params" not in answer.headers
    if path == RESPONSES:
        assert found["service_tier"] == "flex"


async def test_a_flexible_request_is_answered(live: Any) -> None:
    answer = await live.post(service_tier="flex")
    assert answer.status_code == 200
    other = await live.post(service_tier="priority")
    assert other.headers["x-ignored-params"] == "service_tier"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"completion_window": "0m"}, "completion_window"),
        ({"completion_window": "-5m"}, "completion_window"),
        ({"completion_window": "5 parsecs"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"on_late": "never"}, "on_late"),
        ({"service_tier": "flex", "priority": -1}, "priority"),
        ({"background": False, "completion_window": "5m"}, "completion_window"),
        ({"background": False, "on_late": "refuse"}, "on_late"),
    ],
)
async def test_what_is_wrong_is_named(live: Any, given: dict[str, Any], param: str) -> None:
    answer = await live.post(**{"background": True, **given})
    assert error_of(answer) == ("invalid_value", param)


async def test_the_header_makes_a_background_job_with_a_window(live: Any) -> None:
    live.at_once = False
    answer = await live.post(headers={"Prefer": "respond-async"}, completion_window="5m")
    assert answer.status_code == 202
    assert "deadline" in json.loads(answer.content)


def test_other_organizations_take_turns(owner: Any, stranger: Any) -> None:
    """A queue of another organization counts up to one job for each of ours."""
    due = timezone.now() + timedelta(hours=1)
    for n in range(10):
        Job.objects.create(
            id=f"cmpl-{n}", organization=stranger.organization, api_key=stranger.key, model="tiny",
            request={}, context={}, ttl=60, deadline_at=due,
        )  # fmt: skip
    job = new_job("a", "background", model="tiny", organization_id=owner.organization.pk)
    assert forecasts._count_before(job, due) == 1
