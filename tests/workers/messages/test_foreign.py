"""The guards around a consumer. tests/faults/test_messages.py sends messages to a real worker."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.worker import state, strategy
from kombu import Message as ReceivedMessage
from kombu.exceptions import OperationalError
from redis.exceptions import OutOfMemoryError

from workers.messages import DropForeign


class Consumer:
    """Fails with `error` wherever a message is read."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.task_consumer = SimpleNamespace(channel=SimpleNamespace(handlers={"BRPOP": self.read}))

    def read(self, **_options):
        return self.create_task_handler()("read")

    def create_task_handler(self):
        def handle(message):
            if self.error is not None:
                raise self.error
            return message

        return handle


class Message:
    body = b"{no json"

    def __init__(self, acknowledged: bool = False) -> None:
        self.acknowledged = acknowledged
        self.acks = 0

    def ack(self) -> None:
        self.acks += 1


def started(consumer: Consumer) -> Consumer:
    step = DropForeign(SimpleNamespace())
    for _ in range(2):  # it starts again after each loss of the connection
        step.start(consumer)
        step.stop(consumer)
    return consumer


def test_what_can_be_read_passes():
    consumer, message = started(Consumer()), Message()
    assert consumer.create_task_handler()(message) is message
    assert consumer.task_consumer.channel.handlers["BRPOP"]() == "read"
    assert message.acks == 0


@pytest.mark.parametrize(
    "error", [ValueError("json"), TypeError(), KeyError("id"), AttributeError(), RecursionError()]
)
def test_an_unreadable_message_is_acknowledged_and_logged(error, caplog):
    consumer, message, answered = started(Consumer(error)), Message(), Message(acknowledged=True)
    handle = consumer.create_task_handler()
    handle(message)
    handle(answered)
    consumer.task_consumer.channel.handlers["BRPOP"]()
    assert (message.acks, answered.acks) == (1, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "dropped" in caplog.text


@pytest.mark.parametrize("error", [ConnectionError(), OutOfMemoryError(), OperationalError()])
def test_a_fault_of_redis_is_left_to_celery(error):
    consumer = started(Consumer(error))
    with pytest.raises(type(error)):
        consumer.create_task_handler()(Message())


def test_another_transport_has_no_reader_to_guard():
    consumer = Consumer()
    consumer.task_consumer.channel = SimpleNamespace()
    assert started(consumer).create_task_handler()("read") == "read"


class ReservingConsumer(Consumer):
    """Hands messages to Celery's own strategy, which passes them to a pool."""

    def create_task_handler(self):
        app = Celery(set_as_current=False)

        @app.task(name="a task")
        def task(job_id): ...

        consumer = Mock(disable_rate_limits=True, event_dispatcher=None, task_buckets={})
        consumer.controller.state = state
        consumer.on_task_request = lambda request: request.execute_using_pool(Mock())
        take = strategy.default(task, app, consumer)
        return lambda message: take(message, None, Mock(), Mock(), [])


def test_a_message_that_celery_has_reserved_is_forgotten():
    """Celery notices that a time limit is no pair when it passes the task to the pool."""
    message = ReceivedMessage(
        body='[["cmpl-1"], {}, {}]', content_type="application/json", content_encoding="utf-8",
        headers={"task": "a task", "id": "an id", "timelimit": 7},
        channel=Mock(), delivery_tag="a tag",
    )  # fmt: skip
    started(ReservingConsumer()).create_task_handler()(message)
    assert message.acknowledged
    assert (dict(state.requests), set(state.reserved_requests)) == ({}, set())
