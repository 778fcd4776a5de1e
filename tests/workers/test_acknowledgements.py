"""kombu's record of messages in a real Redis, and what is removed from it together."""

from types import SimpleNamespace

import pytest
from kombu import Connection, Queue
from kombu.asynchronous import Hub, set_event_loop
from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError as RedisConnectionError

from project.celeryconfig import make_broker_url
from workers import acknowledgements
from workers.acknowledgements import JoinedQoS, NameEventLoop

pytestmark = pytest.mark.integration


@pytest.fixture
def hub():
    set_event_loop(hub := Hub())
    yield hub
    set_event_loop(None)
    hub.close()


@pytest.fixture
def queue(valkey, redis_client, hub, monkeypatch):
    monkeypatch.setattr(Channel, "QoS", JoinedQoS)
    with Connection(make_broker_url(valkey.url)) as connection:
        queue = Queue("acknowledged", channel=connection.channel())
        for n in range(4):
            connection.Producer().publish(n, routing_key="acknowledged", declare=[queue])
        yield queue


def count_unacknowledged(client):
    """They are in a hash, and in an index by time."""
    assert client.hlen("unacked") == client.zcard("unacked_index")
    return client.hlen("unacked")


def fail(*_args):
    raise RedisConnectionError("away")


def pass_time(hub):
    """Run what the event loop would run after a delay."""
    for entry in list(hub.timer.queue):
        entry.entry()


def test_an_acknowledged_message_is_removed_with_the_next_one_that_comes(queue, redis_client):
    first = queue.get()
    queue.get()
    first.ack()
    assert count_unacknowledged(redis_client) == 2
    queue.get()
    assert count_unacknowledged(redis_client) == 2  # the second and the third


def test_acknowledged_messages_are_removed_after_a_moment_if_no_other_comes(
    queue, redis_client, hub
):
    for message in [queue.get() for _ in range(3)]:
        message.ack()
    assert count_unacknowledged(redis_client) == 3
    pass_time(hub)
    assert count_unacknowledged(redis_client) == 0


def test_a_worker_that_has_reconnected_goes_on_to_join_them(queue, redis_client, hub):
    consumer = SimpleNamespace(hub=hub)
    step = NameEventLoop(consumer)
    hub.reset()  # as Celery does
    step.start(consumer)
    queue.get().ack()
    assert count_unacknowledged(redis_client) == 1
    pass_time(hub)
    assert count_unacknowledged(redis_client) == 0


def test_many_are_removed_at_once(queue, redis_client, monkeypatch):
    monkeypatch.setattr(acknowledgements, "_MOST", 2)
    for message in [queue.get() for _ in range(3)]:
        message.ack()
    assert count_unacknowledged(redis_client) == 1


def test_a_closed_channel_leaves_nothing_acknowledged_and_gives_back_the_rest(queue, redis_client):
    done, _left = queue.get(), queue.get()
    done.ack()
    queue.channel.close()
    assert count_unacknowledged(redis_client) == 0
    assert redis_client.llen("acknowledged") == 3


def test_a_broker_that_is_away_ends_no_worker(queue, redis_client, hub, monkeypatch, caplog):
    queue.get().ack()
    with monkeypatch.context() as patch:
        patch.setattr("redis.client.Pipeline.execute", fail)
        pass_time(hub)
    assert "not removed yet: away" in caplog.text
    queue.get()
    assert count_unacknowledged(redis_client) == 1  # the second one alone


def test_a_message_that_redis_refuses_loses_no_acknowledgement(queue, redis_client, monkeypatch):
    queue.get().ack()
    with monkeypatch.context() as patch:
        patch.setattr("redis.client.Pipeline.execute", fail)
        with pytest.raises(RedisConnectionError):
            queue.get()
    assert count_unacknowledged(redis_client) == 1
    queue.get()
    assert count_unacknowledged(redis_client) == 1  # the last one alone
