"""A web process's channel, against a real server."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from completions.jobs.connection import connect, connect_blocking_reader
from completions.jobs.reading import subscription
from completions.jobs.reading.subscription import Subscription
from tests.running import until

pytestmark = pytest.mark.integration

CHANNEL = "t:ctl:web-1"


class Listener:
    """The reader of a subscription: what it heard, and how often it lost the connection."""

    def __init__(self, url):
        self.heard = []
        self.lost = 0
        self.client = connect_blocking_reader(url)
        self.task = asyncio.create_task(
            Subscription(self.client, CHANNEL.encode(), self.heard.append, self.note_loss).run()
        )

    def note_loss(self):
        self.lost += 1


@asynccontextmanager
async def listen(url):
    listener = Listener(url)
    yield listener
    listener.task.cancel()
    await asyncio.gather(listener.task, return_exceptions=True)
    await listener.client.aclose()


async def publish(client, message):
    """Publish once somebody listens."""
    await until(lambda: client.execute_command("SPUBLISH", CHANNEL, message))


async def test_messages_are_heard_in_order(valkey, redis_client):
    async with listen(valkey.url) as listener:
        for number in range(100):
            await publish(redis_client, number)
        await until(lambda: listener.heard == [b"%d" % number for number in range(100)])
        assert listener.lost == 0
    await until(lambda: not redis_client.execute_command("SPUBLISH", CHANNEL, "nobody"))


async def test_a_lost_connection_is_told_and_renewed(valkey, redis_client):
    async with listen(valkey.url) as listener:
        await publish(redis_client, "before")
        redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: listener.lost == 1)
        await publish(redis_client, "after")
        await until(lambda: listener.heard == [b"before", b"after"])


async def test_a_server_that_does_not_answer_is_lost(valkey, redis_client, monkeypatch):
    monkeypatch.setattr(subscription, "PING_INTERVAL", 0.02)
    async with listen(valkey.url) as listener:
        await publish(redis_client, "before")
        redis_client.client_pause(1000)  # it answers nobody for so many milliseconds
        await until(lambda: listener.lost > 0)
        await publish(redis_client, "after")
        await until(lambda: listener.heard[-1] == b"after")


async def test_a_user_who_may_not_listen_leaves_it_at_that(valkey, redis_client):
    redis_client.acl_setuser(
        "apart", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"]
    )
    try:
        async with listen(valkey.url.replace("?", "?username=apart&password=secret&")) as listener:
            await asyncio.wait_for(listener.task, 60)
            assert (listener.heard, listener.lost) == ([], 0)
        client = connect(valkey.url.replace("?", "?username=apart&password=secret&"))
        client.ping()
        client.close()
    finally:
        redis_client.acl_deluser("apart")
