"""Leases: one holder at a time, kept while it works, free soon after it was killed."""

import time

import pytest

from completions.upkeep import locks
from completions.upkeep.locks import lease

pytestmark = pytest.mark.integration


def test_one_holder_at_a_time(redis_client):
    with lease(redis_client, "l") as mine:
        assert mine.alive()
        with lease(redis_client, "l") as other:
            assert other is None
        assert redis_client.pttl("l") <= locks.LEASE * 1000
    assert not redis_client.exists("l")
    with lease(redis_client, "l") as mine:
        assert mine


def test_it_is_renewed_while_it_is_held(redis_client, monkeypatch):
    monkeypatch.setattr(locks, "LEASE", 0.3)
    with lease(redis_client, "l") as mine:
        time.sleep(0.7)
        assert mine.alive()
        assert redis_client.exists("l")


def test_who_lost_it_learns_so_and_takes_nothing_from_the_next(redis_client, monkeypatch):
    monkeypatch.setattr(locks, "LEASE", 0.3)
    with lease(redis_client, "l") as mine:
        redis_client.set("l", "another's")
        time.sleep(0.3)
        assert not mine.alive()
    assert redis_client.get("l") == b"another's"
