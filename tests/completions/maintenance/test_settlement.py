"""Ended jobs: usage and results from Redis to SQL, each exactly once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError
from django.utils import timezone

from completions.contract.job_request import JobRequest
from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs import durable, events
from completions.jobs.ended import read_ended
from completions.jobs.execute import Ending, Execution
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import submit_durable
from completions.maintenance import settlement
from completions.models import Job, UsageRecord
from completions.usage import ledger

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

PREFIX = "u:"


def run_job(client, tenant, job_id, state="completed", error=None, kind="background", request=None):
    """A job's whole life in Redis."""
    job = NewJob(
        job_id, kind, "m", tenant.organization.pk, tenant.key.pk, request or JobRequest(), b"",
        60, 60,
        request_id=f"req_{job_id}",
    )  # fmt: skip
    submit_durable(JobStore(client, PREFIX), [job])
    worker = Execution(JobStore(client, PREFIX), "w")
    worker.beat("m", {})
    (claim,) = worker.claim([job_id])
    ending = Ending(job_id, claim.attempt, 1, state, error, Usage(3, 5, 1))
    worker.publish([], [ending])


def settle(client):
    return settlement.settle(JobStore(client, PREFIX))


def test_ended_jobs_become_records(owner, redis_client):
    run_job(redis_client, owner, "a")
    run_job(redis_client, owner, "b", "failed", events.JobError("grammar_error", "no"))
    assert settle(redis_client) == 2
    done, failed = UsageRecord.objects.order_by("job_id")
    assert (done.prompt_tokens, done.completion_tokens, done.cached_tokens) == (3, 5, 1)
    assert (done.organization, done.api_key, done.model) == (owner.organization, owner.key, "m")
    assert done.created_at <= done.finished_at
    assert done.run_ms is not None
    assert (done.request_id, failed.request_id) == ("req_a", "req_b")
    assert (failed.status, failed.error_code) == ("failed", "grammar_error")
    assert settle(redis_client) == 0


def test_a_record_holds_no_character_that_postgresql_refuses(owner, redis_client):
    """Such a record would hold up all jobs that end after it."""
    run_job(redis_client, owner, "a", request=JobRequest(((1,),), SamplingParams(stop=("\0",))))
    assert settle(redis_client) == 1
    assert UsageRecord.objects.get().parameters["stop"] == ["\N{SYMBOL FOR NULL}"]


def test_a_clock_that_jumped_makes_no_number_that_postgresql_refuses(owner, redis_client):
    """The clock of Redis's host was at 1970, and was set while the job waited."""
    run_job(redis_client, owner, "a")
    (job,), _ = read_ended(JobStore(redis_client, PREFIX), 1)
    ledger.record([replace(job, created=1.0)])
    assert UsageRecord.objects.get().queued_ms == 2**31 - 1


def test_a_flush_that_died_before_deleting_is_repeated_harmlessly(owner, redis_client, monkeypatch):
    run_job(redis_client, owner, "a")
    with monkeypatch.context() as patch:
        patch.setattr(settlement, "delete_entries", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            settle(redis_client)
    assert settle(redis_client) == 1
    assert UsageRecord.objects.count() == 1


def test_more_than_one_batch(owner, redis_client, monkeypatch):
    monkeypatch.setattr(settlement, "BATCH_SIZE", 2)
    for number in range(5):
        run_job(redis_client, owner, f"job-{number}")
    assert settle(redis_client) == 5
    assert UsageRecord.objects.count() == 5


def test_a_job_that_cannot_be_stored_holds_nothing_up_and_is_tried_again(
    owner, redis_client, monkeypatch, caplog
):
    record = ledger.record

    def refuse(jobs):
        if any(job.id == "b" for job in jobs):
            raise ValueError("out of range")
        record(jobs)

    for job_id in "abc":
        run_job(redis_client, owner, job_id)
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "record", refuse)
        assert settle(redis_client) == 2
        assert settle(redis_client) == 0
    assert [record.job_id for record in UsageRecord.objects.order_by("job_id")] == ["a", "c"]
    assert "job b cannot be settled" in caplog.text
    assert settle(redis_client) == 1
    assert UsageRecord.objects.count() == 3


def test_an_unreachable_database_does_not_drop_jobs(owner, redis_client, monkeypatch):
    run_job(redis_client, owner, "a")
    run_job(redis_client, owner, "b")
    with monkeypatch.context() as patch:

        def away(jobs):
            raise OperationalError("the server closed the connection")

        patch.setattr(ledger, "record", away)
        with pytest.raises(OperationalError):
            settle(redis_client)
    assert settle(redis_client) == 2


def test_records_of_a_deleted_key_hold_nothing_up(owner, stranger, redis_client):
    run_job(redis_client, owner, "gone")
    run_job(redis_client, stranger, "kept")
    owner.key.delete()
    assert settle(redis_client) == 2
    assert [record.job_id for record in UsageRecord.objects.all()] == ["kept"]


def store(tenant, job_id):
    Job.objects.create(
        id=job_id, organization=tenant.organization, api_key=tenant.key, model="m", request={},
        context={"id": job_id}, deadline_at=datetime.now(UTC), ttl=60,
    )  # fmt: skip


def test_a_background_job_learns_its_end(owner, redis_client):
    store(owner, "a")
    run_job(redis_client, owner, "a", "failed", events.JobError("worker_error", "gone"))
    settle(redis_client)
    job = Job.objects.get(id="a")
    assert (job.status, job.error_code) == ("failed", "worker_error")
    assert job.expires_at - job.finished_at == timedelta(seconds=60)
    record = async_to_sync(durable.find)("a", timezone.now())
    assert record.has_ended
    assert record.error == events.JobError("worker_error", "gone")
    assert record.usage == Usage(3, 5, 1)
    assert record.sequence_number == 1
    assert [type(event) for event in record.events] == [events.EndEvent]


def test_redis_keeps_a_result_until_sql_has_it(owner, redis_client, settings):
    settings.RESULT_TTL = 50
    store(owner, "a")
    run_job(redis_client, owner, "a")
    keys = [f"{PREFIX}job:a", f"{PREFIX}ev:a"]
    assert [redis_client.ttl(key) for key in keys] == [-1, -1]
    settle(redis_client)
    assert all(0 < redis_client.ttl(key) <= 50 for key in keys)
    run_job(redis_client, owner, "sync", kind="sync")
    assert 0 < redis_client.ttl(f"{PREFIX}job:sync") <= 60


def test_a_result_expires(owner, redis_client):
    store(owner, "a")
    run_job(redis_client, owner, "a")
    settle(redis_client)
    late = timezone.now() + timedelta(seconds=61)
    assert async_to_sync(durable.find)("a", late) is None
    assert durable.prune(timezone.now()) == 0
    assert durable.prune(late) == 1


def test_a_job_deleted_meanwhile_stays_deleted(owner, redis_client):
    run_job(redis_client, owner, "a")
    redis_client.delete(f"{PREFIX}job:a", f"{PREFIX}ev:a")
    assert settle(redis_client) == 1
    assert UsageRecord.objects.count() == 1
    assert not Job.objects.exists()
