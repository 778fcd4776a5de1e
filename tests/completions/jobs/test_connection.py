"""The clients: cancellation is never lost, silence is bounded."""

import asyncio
import random

import pytest

from completions.jobs import connection
from completions.jobs.connection import connect_async

pytestmark = pytest.mark.integration


async def test_no_cancellation_is_swallowed(valkey, redis_client):
    """A hang-up arrives as a cancellation at any moment of a command."""
    client = connect_async(valkey.url)

    async def busy():
        while True:
            await client.set("k", "v")
            pipeline = client.pipeline(transaction=False).get("k").get("none")
            assert await pipeline.execute() == [b"v", None]

    draw = random.Random(1)  # noqa: S311 - moments, not secrets
    for _ in range(100):
        task = asyncio.create_task(busy())
        await asyncio.sleep(draw.random() * 0.002)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=2)
        assert done, "a cancelled task went on"
        assert task.cancelled()
    assert await client.get("k") == b"v"  # and no reply went astray
    await client.aclose()


@pytest.mark.parametrize("how", ["command", "pipeline"])
async def test_a_silent_server_is_an_error(valkey, redis_client, monkeypatch, how):
    monkeypatch.setattr(connection, "_COMMAND_TIMEOUT", 0.1)
    async with connect_async(valkey.url) as client:
        await client.ping()
        redis_client.execute_command("CLIENT", "PAUSE", 1000)
        pipeline = client.pipeline(transaction=False).set("k", "v")
        with pytest.raises(TimeoutError):
            await (client.set("k", "v") if how == "command" else pipeline.execute())
