"""The admin as its users see it: `admin` may everything, `viewer` may look, and Redis is down
unless a test asks for `live`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client

from completions.accounts import operator_groups
from completions.admin.live import state
from completions.jobs.sharding.shards import Shards, SyncShards
from completions.jobs.store import JobStore


@pytest.fixture
def admin(client: Client, served: None, db: None) -> Client:
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


@pytest.fixture
def in_role(served: None, db: None) -> Callable[[str], Client]:
    """A user of the admin with one role."""

    def make(role: str) -> Client:
        operator_groups.ensure()
        user = User.objects.create_user(role, password="x", is_staff=True)
        user.groups.add(Group.objects.get(name=role))
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def live(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The private Valkey, in the place of the installation's."""

    @contextmanager
    def shards() -> Iterator[SyncShards]:
        yield Shards.make_single(JobStore(redis_client, settings.REDIS_PREFIX))

    monkeypatch.setattr(state, "open_shards", shards)
    return redis_client
