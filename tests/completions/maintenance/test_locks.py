"""Leases: one holder at a time, kept while it works, free soon after it was killed."""

import time
from collections.abc import Callable

import pytest

from completions.jobs.store import JobStore
from completions.maintenance import locks
from completions.maintenance.locks import lease

pytestmark = pytest.mark.integration


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_one_holder_at_a_time(redis_client):
    with lease(JobStore(redis_client, ""), "l") as mine:
        assert mine.alive()
        with lease(JobStore(redis_client, ""), "l") as other:
            assert other is None
        assert redis_client.pttl("lock:l") <= locks.LEASE * 1000
    assert not redis_client.exists("lock:l")
    with lease(JobStore(redis_client, ""), "l") as mine:
        assert mine


def test_it_is_renewed_while_it_is_held(redis_client, monkeypatch):
    monkeypatch.setattr(locks, "LEASE", 6.0)
    with lease(JobStore(redis_client, ""), "l") as mine:
        redis_client.pexpire("lock:l", 100_000)  # the next renewal sets it back
        until(lambda: redis_client.pttl("lock:l") <= 6_000)
        assert mine.alive()
        assert redis_client.exists("lock:l")


def test_a_lost_lock_is_reported_and_not_released_for_the_next_holder(redis_client, monkeypatch):
    monkeypatch.setattr(locks, "LEASE", 0.3)
    with lease(JobStore(redis_client, ""), "l") as mine:
        redis_client.set("lock:l", "another's")
        until(lambda: not mine.alive())
    assert redis_client.get("lock:l") == b"another's"
