"""Celery's settings for Redis."""

from datetime import timedelta

import pytest
from celery.beat import ScheduleEntry

from project import celery_app, celeryconfig
from project.celeryconfig import make_broker_url


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("unix:///run/v.sock?db=0", "redis+socket:///run/v.sock?virtual_host=0"),
        ("redis://:secret@host:6379/3", "redis://:secret@host:6379/3"),
        ("rediss://host:6379/0", "rediss://host:6379/0"),
    ],
)
def test_broker_urls(given, expected):
    assert make_broker_url(given) == expected


def test_nothing_on_the_wire_is_pickled():
    assert celery_app.conf.accept_content == ["json"]
    assert celery_app.conf.task_serializer == "json"
    assert celery_app.conf.task_acks_late
    assert celery_app.conf.broker_transport_options["global_keyprefix"] == "quire:"


@pytest.mark.parametrize("step", [-500, 500])
def test_a_clock_that_steps_moves_no_periodic_task(monkeypatch, step):
    settle = celery_app.conf.beat_schedule["settle"]
    entry = ScheduleEntry("settle", settle["task"], schedule=settle["schedule"], app=celery_app)
    stepped, began = celery_app.now() + timedelta(seconds=step), celeryconfig.monotonic()
    monkeypatch.setattr(celery_app, "now", lambda: stepped)
    monkeypatch.setattr(celeryconfig, "monotonic", lambda: began + 1)
    assert not entry.is_due().is_due
    monkeypatch.setattr(celeryconfig, "monotonic", lambda: began + 2.1)
    assert entry.is_due().is_due
    entry = next(entry)
    assert entry.is_due() == (False, pytest.approx(2, abs=0.01))
