"""The guards around a consumer. tests/faults/test_messages.py sends messages to a real worker."""

from types import SimpleNamespace

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import OutOfMemoryError

from workers.foreign_messages import DropForeign


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
