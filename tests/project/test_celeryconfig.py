"""Celery's settings for Redis."""

import pytest

from project import celery_app
from project.celeryconfig import redis_broker_url


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("unix:///run/v.sock?db=0", "redis+socket:///run/v.sock?virtual_host=0"),
        ("redis://:secret@host:6379/3", "redis://:secret@host:6379/3"),
        ("rediss://host:6379/0", "rediss://host:6379/0"),
    ],
)
def test_broker_urls(given, expected):
    assert redis_broker_url(given) == expected


def test_nothing_on_the_wire_is_pickled():
    assert celery_app.conf.accept_content == ["json"]
    assert celery_app.conf.task_serializer == "json"
    assert celery_app.conf.task_acks_late
    assert celery_app.conf.broker_transport_options["global_keyprefix"] == "quire:"
