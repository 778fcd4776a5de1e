"""The clients: cancellation is never lost, silence is bounded."""

import asyncio
import random
import time

import pytest
from redis.exceptions import ResponseError

from completions.jobs import connection
from completions.jobs.connection import Bounded, DedicatedConnection, connect_async

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
        done, _ = await asyncio.wait({task}, timeout=120)
        assert done, "a cancelled task went on"
        assert task.cancelled()
    assert await client.get("k") == b"v"  # and no reply went astray
    await client.aclose()


@pytest.mark.parametrize("how", ["command", "pipeline"])
async def test_a_silent_server_is_an_error(valkey, redis_client, monkeypatch, how):
    async with connect_async(valkey.url) as client:
        await client.ping()
        monkeypatch.setattr(connection, "COMMAND_TIMEOUT", 0.1)
        redis_client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        pipeline = client.pipeline(transaction=False).set("k", "v")
        with pytest.raises(TimeoutError):
            await (client.set("k", "v") if how == "command" else pipeline.execute())
        redis_client.execute_command("CLIENT", "UNPAUSE")


async def test_a_line_gives_replies_in_order_and_errors_in_their_places(valkey, redis_client):
    async with connect_async(valkey.url) as client:
        line = DedicatedConnection(client)
        asked = [("SET", "k", "v"), ("LPUSH", "k", "v"), ("GET", "k")]
        done, refused, found = await line.ask_all(asked)
        assert (done, found) == (b"OK", b"v")
        assert "WRONGTYPE" in str(refused)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await line.ask(("LPUSH", "k", "v"))
        assert await line.ask(("GET", "k")) == b"v"


async def test_a_line_that_was_cut_is_drawn_anew(valkey, redis_client):
    async with connect_async(valkey.url) as client:
        line = DedicatedConnection(client)
        for _ in range(3):
            assert await line.ask_again([("PING",)]) == [b"PONG"]
            redis_client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_a_reply_after_a_timeout_is_not_taken_for_the_next_one(valkey, redis_client):
    async with connect_async(valkey.url) as client:
        line = DedicatedConnection(client)
        redis_client.execute_command("CLIENT", "PAUSE", 200)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await line.ask(("ECHO", "early"))
        assert await line.ask(("ECHO", "late")) == b"late"


async def test_silence_is_bounded():
    with pytest.raises(TimeoutError):
        async with Bounded(0.05):
            await asyncio.Event().wait()


async def test_a_loop_that_is_behind_with_its_work_is_not_silence():
    """The answer is here, but something blocks the loop, and it takes some turns to be read."""
    loop, answered = asyncio.get_running_loop(), asyncio.Event()

    def read(turns):
        if turns:
            loop.call_soon(read, turns - 1)
        else:
            answered.set()

    loop.call_soon(time.sleep, 0.5)
    loop.call_soon(read, 10)
    async with Bounded(0.2):
        await answered.wait()
