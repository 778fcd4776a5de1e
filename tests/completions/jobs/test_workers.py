"""Who lives, from heartbeats."""

import pytest

from completions.jobs.connection import connect_async
from completions.jobs.execute import Execution
from completions.jobs.new_job import Level
from completions.jobs.store import JobStore
from completions.jobs.submit import submit_durable
from completions.jobs.workers import (
    HEARTBEAT_TTL,
    drain,
    list_live_models,
    list_standby_sync,
    list_workers,
    list_workers_sync,
    resume,
)
from tests.completions.jobs.job_making import PREFIX, new_job

pytestmark = pytest.mark.integration


async def test_workers_live_as_long_as_their_heartbeat(valkey, redis_client):
    for name, model in (("a", "m"), ("b", "n")):
        Execution(JobStore(redis_client, "w:"), name).beat(model, {"running": 2})
    assert 0 < redis_client.ttl("w:worker:a") <= HEARTBEAT_TTL
    async with connect_async(valkey.url) as client:
        found = await list_workers(JobStore(client, "w:"))
        assert [(w.id, w.model, w.facts) for w in found] == [
            ("a", "m", {"accepting": True, "shows": True, "running": 2}),
            ("b", "n", {"accepting": True, "shows": True, "running": 2}),
        ]  # fmt: skip
        redis_client.delete("w:worker:a")  # it died
        assert [w.id for w in await list_workers(JobStore(client, "w:"))] == ["b"]
        assert redis_client.smembers("w:workers") == {b"b"}
        Execution(JobStore(redis_client, "w:"), "b").stop_beating()
        assert await list_workers(JobStore(client, "w:")) == []


async def test_models_on_standby_are_those_whose_worker_said_so_lately(valkey, redis_client):
    store = JobStore(redis_client, "w:")
    store.call("standby", "a", "b")
    Execution(store, "one").beat("b", {"forward": "c"})
    async with connect_async(valkey.url) as client:
        live = await list_live_models(JobStore(client, "w:"))
        assert live == ({"b": "c"}, {"a", "b"})
        assert live.is_cold("a")
        assert not live.is_cold("b")
        assert list_standby_sync(store) == {"a", "b"}
        redis_client.zincrby("w:standby", -HEARTBEAT_TTL - 1, "a")
        assert list_standby_sync(store) == {"b"}
        assert (await list_live_models(JobStore(client, "w:"))).standby == {"b"}


def test_a_worker_of_several_models_learns_how_many_jobs_wait_for_each(redis_client):
    store = JobStore(redis_client, PREFIX)
    assert store.call("standby", "a") == [[-1, 0]]
    jobs = [
        new_job("cmpl-1", "batch", model="a"),
        new_job("cmpl-2", model="a"),
        new_job("cmpl-3", model="a"),
        new_job("cmpl-4", model="a", api_key_id=9),
        new_job("cmpl-5", model="a", organization_id=6),
        new_job("cmpl-6", "batch", model="b"),
    ]
    submit_durable(store, jobs)
    levels = [Level.BACKGROUND, Level.BATCH, -1]
    counts = [4, 1, 0]  # of the most urgent level
    assert store.call("standby", "a", "b", "c") == list(map(list, zip(levels, counts, strict=True)))


def test_a_worker_learns_of_its_drain_with_its_heartbeat(redis_client):
    one, other = (Execution(JobStore(redis_client, "w:"), name) for name in ("one", "other"))
    assert not one.beat("m", {})
    redis_client.delete("w:served")
    drain(JobStore(redis_client, "w:"), "one")
    assert one.beat("m", {}, accepting=False)
    assert not other.beat("n", {})
    assert redis_client.zrange("w:served", 0, -1) == [b"n"]  # who is drained serves nobody new
    found = list_workers_sync(JobStore(redis_client, "w:"))
    assert [(w.id, w.accepting, w.drain_wanted) for w in found] == [
        ("one", False, True), ("other", True, False),
    ]  # fmt: skip
    assert all(0 <= w.age <= HEARTBEAT_TTL for w in found)
    resume(JobStore(redis_client, "w:"), "one")
    assert not one.beat("m", {}, accepting=False)
    drain(JobStore(redis_client, "w:"), "one")
    one.stop_beating()
    assert not redis_client.exists("w:drain:one")  # nobody is left to follow it
    redis_client.delete("w:worker:other")
    assert list_workers_sync(JobStore(redis_client, "w:")) == []
