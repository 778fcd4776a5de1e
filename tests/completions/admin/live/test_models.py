"""The page of models."""

import pytest
import redis
from django.conf import settings
from django.test import Client

from completions.jobs.execute import Execution
from completions.jobs.store import JobStore

pytestmark = pytest.mark.integration


def test_models_by_who_serves_them(admin: Client, live: redis.Redis) -> None:
    worker = Execution(JobStore(live, settings.REDIS_PREFIX), "worker-1")
    worker.beat("tiny", {"running": 3})
    page = admin.get("/admin/models/").content.decode()
    for shown in ("tiny", "loaded", "no worker", "chat", "prompt 0.5", "polite"):
        assert shown in page
    assert "cannot be read" in page  # `absent` has no files
    assert "No worker serves texts" in admin.get("/admin/").content.decode()
