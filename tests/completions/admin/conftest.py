"""The admin as its users see it: `admin` may everything, `viewer` may look, and Redis is down
unless a test asks for `live`."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from django.conf import settings

from completions.admin.live import state
from completions.jobs.sharding.shards import Shards, SyncShards
from completions.jobs.store import JobStore


@pytest.fixture
def live(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The private Valkey, in the place of the installation's."""

    @contextmanager
    def shards() -> Iterator[SyncShards]:
        yield Shards.make_single(JobStore(redis_client, settings.REDIS_PREFIX))

    monkeypatch.setattr(state, "open_shards", shards)
    return redis_client
