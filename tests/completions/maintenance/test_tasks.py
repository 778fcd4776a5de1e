"""The periodic tasks: one background worker at a time, and lost jobs published again."""

from datetime import timedelta

import pytest
from django.utils import timezone
from kombu.exceptions import OperationalError

from completions.batches import states
from completions.contract.job_request import JobRequest
from completions.jobs.connection import connect
from completions.jobs.new_job import NewJob
from completions.jobs.sharding.shards import Shards
from completions.jobs.store import JobStore
from completions.jobs.submit import submit_durable
from completions.maintenance import tasks
from completions.models import Batch
from tests.completions.conftest import new_tenant

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def client(valkey, redis_client, settings, monkeypatch):
    settings.REDIS_PREFIX = "p:"
    client = connect(valkey.url)
    shards = Shards.make_single(JobStore(client, "p:"))
    monkeypatch.setattr(tasks, "_shards", lambda: shards)
    yield client
    client.close()


@pytest.fixture
def dispatched(monkeypatch):
    sent = []
    monkeypatch.setattr(tasks, "dispatch", lambda *message: sent.append(message))
    return sent


def lose(client, job_id):
    """An open job of which no message exists."""
    job = NewJob(job_id, "background", "m", 1, 1, JobRequest(), b"", 60, 60)
    submit_durable(JobStore(client, "p:"), [job])


def cancel(client, job_id):
    """End a job that is queued."""
    JobStore(client, "p:").call("cancel", job_id, "client")


def test_a_lost_job_is_published_again(client, dispatched):
    lose(client, "a")
    tasks.reconcile()
    assert dispatched == [("a", "m", 6)]
    tasks.reconcile()
    assert len(dispatched) == 1  # not again at once


def test_only_the_holder_of_the_lock_reconciles(client, dispatched):
    lose(client, "a")
    client.set("p:lock:reconcile", "another", ex=60)
    tasks.reconcile()
    assert dispatched == []


def test_a_broker_that_is_away_ends_the_round(client, monkeypatch):
    def away(*_message):
        raise OperationalError("away")

    monkeypatch.setattr(tasks, "dispatch", away)
    lose(client, "a")
    tasks.reconcile()
    assert not client.exists("p:lock:reconcile")


def test_jobs_are_settled_under_a_lock(client):
    assert tasks.settle() == 0
    lose(client, "a")
    cancel(client, "a")
    client.set("p:lock:settle", "another", ex=60)
    assert tasks.settle() == 0
    client.delete("p:lock:settle")
    assert tasks.settle() == 1
    assert not client.exists("p:lock:settle")


def test_no_lock_is_taken_when_nothing_is_to_be_done(client, monkeypatch):
    monkeypatch.setattr(tasks, "_acquire_lock", lambda name: pytest.fail(f"took the lock {name}"))
    assert tasks.settle() == 0
    tasks.advance_batches()


def queue_batch(tenant, number):
    """A batch that is to be validated."""
    owner = {"organization": tenant.organization, "api_key": tenant.key}
    at = timezone.now() + timedelta(seconds=number)
    return Batch.objects.create(
        id=f"batch_{tenant.organization.name}{number}", endpoint="/v1/completions",
        completion_window="24h", output_seconds=3600, input_file_id="file-1", created_at=at,
        expires_at=at + timedelta(hours=24), **owner,
    ).id  # fmt: skip


def test_no_organization_waits_for_all_batches_of_another(client, monkeypatch):
    """The next message arrives while a batch is validated."""
    a, b, c = (new_tenant(name) for name in "abc")
    messages = [queue_batch(a, 1), queue_batch(a, 2), queue_batch(b, 3), queue_batch(c, 4)]
    assert states.list_unvalidated() == [messages[0], *messages[2:], messages[1]]
    began = []

    def validate(batch, *_):
        began.append(batch.id)
        while messages:
            tasks.validate_batch(messages.pop(0))

    monkeypatch.setattr(tasks.validation, "validate", validate)
    tasks.validate_batch(messages.pop(0))
    assert began == ["batch_a1", "batch_b3"]  # a's second one and a third place come later
    tasks.validate_batch("batch_a2")
    assert began[-1] == "batch_a2"
