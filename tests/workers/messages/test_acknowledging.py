"""kombu's record of messages in a real Redis, and what is removed from it together."""

from types import SimpleNamespace

import pytest
from kombu import Connection, Queue
from kombu.asynchronous import Hub, set_event_loop
from kombu.transport.redis import Channel
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from project.celeryconfig import make_broker_url
from workers import messages
from workers.messages import JoinedQoS, NameEventLoop

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


def test_messages_are_recorded_and_removed_after_a_moment(queue, redis_client, hub):
    messages = [queue.get() for _ in range(3)]
    assert count_unacknowledged(redis_client) == 0
    pass_time(hub)
    assert count_unacknowledged(redis_client) == 3
    for message in messages[:2]:
        message.ack()
    assert count_unacknowledged(redis_client) == 3
    pass_time(hub)
    assert count_unacknowledged(redis_client) == 1


def test_a_message_that_is_soon_acknowledged_is_never_recorded(queue, redis_client, hub):
    queue.get().ack()
    queue.get()
    pass_time(hub)
    assert count_unacknowledged(redis_client) == 1  # the second one


def test_a_worker_that_has_reconnected_goes_on_to_join_them(queue, redis_client, hub):
    consumer = SimpleNamespace(hub=hub)
    step = NameEventLoop(consumer)
    hub.reset()  # as Celery does
    step.start(consumer)
    queue.get()
    assert count_unacknowledged(redis_client) == 0
    pass_time(hub)
    assert count_unacknowledged(redis_client) == 1


def test_many_are_recorded_at_once(queue, redis_client, monkeypatch):
    monkeypatch.setattr(messages, "_MOST", 2)
    for _ in range(3):
        queue.get()
    assert count_unacknowledged(redis_client) == 2


def test_a_closed_channel_leaves_nothing_acknowledged_and_gives_back_the_rest(
    queue, redis_client, hub
):
    done, _left = queue.get(), queue.get()
    pass_time(hub)
    done.ack()
    _new = queue.get()
    queue.channel.close()
    assert count_unacknowledged(redis_client) == 0
    assert redis_client.llen("acknowledged") == 3


@pytest.mark.parametrize("requeue", [True, False])
def test_a_message_that_is_refused_goes_back_or_away(queue, redis_client, hub, requeue):
    message = queue.get()
    message.reject(requeue=requeue)
    pass_time(hub)
    assert count_unacknowledged(redis_client) == 0
    assert redis_client.llen("acknowledged") == (4 if requeue else 3)


def test_a_broker_that_is_away_ends_no_worker(queue, redis_client, hub, monkeypatch, caplog):
    left, done = queue.get(), queue.get()
    pass_time(hub)
    done.ack()
    new = queue.get()
    with monkeypatch.context() as patch:
        patch.setattr("redis.client.Pipeline.execute", fail)
        pass_time(hub)
    assert "not up to date: away" in caplog.text
    pass_time(hub)  # it tries again by itself
    assert count_unacknowledged(redis_client) == 2
    assert not redis_client.hexists("unacked", done.delivery_tag)
    for message in (left, new):
        assert redis_client.hexists("unacked", message.delivery_tag)


def test_a_broker_that_is_away_is_not_asked_for_each_message(queue, hub, monkeypatch):
    monkeypatch.setattr(messages, "_MOST", 1)
    asked = []
    monkeypatch.setattr("redis.client.Pipeline.execute", lambda *_: asked.append(1) or fail())
    first, second = queue.get(), queue.get()
    assert len(asked) == 1
    with pytest.raises(RedisConnectionError):  # as kombu, which would lose it from the record
        second.reject(requeue=True)
    pass_time(hub)
    assert len(asked) == 3
    first.ack()
    assert len(asked) == 3


def test_at_maxmemory_acknowledged_messages_are_removed_all_the_same(
    queue, redis_client, hub, monkeypatch
):
    done = queue.get()
    pass_time(hub)
    done.ack()
    left = queue.get()
    execute = Pipeline.execute

    def refuse(pipe, *given):
        if any("HSET" in command for command, _ in pipe.command_stack):
            raise OutOfMemoryError
        return execute(pipe, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "execute", refuse)
        pass_time(hub)
    assert count_unacknowledged(redis_client) == 0
    pass_time(hub)
    assert redis_client.hkeys("unacked") == [left.delivery_tag.encode()]
