"""The page of workers."""

import pytest
import redis
from django.conf import settings
from django.test import Client

from completions.jobs.execute import Execution
from completions.jobs.store import JobStore

pytestmark = pytest.mark.integration

FACTS = {"running": 3, "waiting": 1, "jobs": 4, "generated_tokens": 2500, "forced_tokens": 500}


@pytest.fixture
def worker(live: redis.Redis) -> Execution:
    return Execution(JobStore(live, settings.REDIS_PREFIX), "worker-1")


def test_what_a_worker_does(admin: Client, worker: Execution) -> None:
    assert "No worker is alive" in admin.get("/admin/workers/").content.decode()
    worker.beat("tiny", FACTS)
    page = admin.get("/admin/workers/").content.decode()
    for shown in ("worker-1", "serving", "3 / 64", "2.5k", "20 %", "Drain"):
        assert shown in page


def test_draining_and_resuming(admin: Client, worker: Execution, live: redis.Redis) -> None:
    worker.beat("tiny", FACTS)
    response = admin.post("/admin/workers/worker-1/drain/", follow=True)
    page = response.content.decode()
    assert "draining" in page
    assert "Resume" in page
    assert worker.beat("tiny", {**FACTS, "jobs": 0}, accepting=False)
    page = admin.get("/admin/workers/").content.decode()
    assert "drained" in page
    assert "All workers of tiny are drained" in page
    admin.post("/admin/workers/worker-1/resume/")
    assert not worker.beat("tiny", FACTS)
    assert "serving" in admin.get("/admin/workers/").content.decode()


def test_draining_the_last_worker_asks_first(
    admin: Client, worker: Execution, live: redis.Redis
) -> None:
    worker.beat("tiny", FACTS)
    Execution(JobStore(live, settings.REDIS_PREFIX), "worker-2").beat("texts", FACTS)
    assert admin.get("/admin/workers/").content.decode().count("data-confirm") == 2
    Execution(JobStore(live, settings.REDIS_PREFIX), "worker-3").beat("tiny", FACTS)
    page = admin.get("/admin/workers/").content.decode()
    assert page.count("data-confirm") == 1
    assert "No other worker takes jobs of texts" in page
