"""Who lives, from heartbeats."""

import pytest

from completions.jobs.connection import connect_async
from completions.jobs.execution import HEARTBEAT_TTL, Execution
from completions.jobs.workers import live_workers

pytestmark = pytest.mark.integration


async def test_workers_live_as_long_as_their_heartbeat(valkey, redis_client):
    for name, model in (("a", "m"), ("b", "n")):
        Execution(redis_client, "w:", name).beat(model, {"running": 2})
    assert 0 < redis_client.ttl("w:worker:a") <= HEARTBEAT_TTL
    async with connect_async(valkey.url) as client:
        found = await live_workers(client, "w:")
        assert [(w.id, w.model, w.facts) for w in found] == [
            ("a", "m", {"running": 2}), ("b", "n", {"running": 2}),
        ]  # fmt: skip
        redis_client.delete("w:worker:a")  # it died
        assert [w.id for w in await live_workers(client, "w:")] == ["b"]
        assert redis_client.smembers("w:workers") == {b"b"}
        Execution(redis_client, "w:", "b").stop_beating()
        assert await live_workers(client, "w:") == []
