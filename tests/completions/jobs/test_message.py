"""Jobs' messages as Celery itself would publish them, read from a real broker."""

import json
from base64 import b64decode

import pytest
from celery import Celery

from completions.jobs import message
from completions.jobs.message import make_message
from project.celeryconfig import make_broker_url

pytestmark = pytest.mark.integration

BY_CHANCE = ("delivery_tag", "reply_to")


@pytest.fixture
def app(valkey, redis_client, monkeypatch):
    app = Celery("test", broker=make_broker_url(valkey.url), set_as_current=False)
    monkeypatch.setattr(message, "current_app", app)
    message._template.cache_clear()
    yield app
    message._template.cache_clear()
    app.close()


def as_sent(raw):
    message = json.loads(raw)
    message["body"] = json.loads(b64decode(message["body"]))
    for name in BY_CHANCE:
        message["properties"].pop(name)
    return message


@pytest.mark.parametrize("priority", range(10))
def test_a_message_is_the_one_that_celery_publishes(app, redis_client, priority):
    for model in ("m", "with:colon/and-slash"):
        message.dispatch("cmpl-1", model, priority)
        queue, payload = make_message("cmpl-1", model, priority)
        (published,) = redis_client.lrange(queue, 0, -1)
        assert as_sent(payload) == as_sent(published)


def test_a_consumer_reads_it(app, redis_client):
    queue, payload = make_message("cmpl-1", "m", 0)
    redis_client.lpush(queue, payload)
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("gen.m").get(timeout=30)
        assert message.headers["task"] == "workers.tasks.generate"
        assert message.payload[:2] == [["cmpl-1"], {}]
        message.ack()


def test_no_two_have_one_tag(app):
    tags = {
        json.loads(make_message("a", "m", 0).payload)["properties"]["delivery_tag"] for _ in "ab"
    }
    assert len(tags) == 2
