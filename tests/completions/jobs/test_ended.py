"""Ended jobs on their way from Redis to SQL."""

import pytest

from completions.contract.job_request import JobRequest
from completions.contract.usage import Usage
from completions.jobs import events
from completions.jobs.ended import (
    FIRST,
    delete_entries,
    read_ended,
)
from completions.jobs.events import ChoiceEvent, EndEvent
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import submit_durable
from tests.completions.fake_worker import FakeWorker

PREFIX = "e:"


def run(client, job_id, kind="background"):
    job = NewJob(job_id, kind, "tiny", 1, 2, JobRequest(((1,),)), job_id.encode(), 60, 30)
    submit_durable(JobStore(client, PREFIX), [job])
    FakeWorker(client, PREFIX).run(job_id)


@pytest.mark.integration
def test_kept_jobs_come_with_their_results_and_others_without(redis_client):
    run(redis_client, "kept")
    run(redis_client, "sync", kind="sync")
    (kept, sync), _ = read_ended(JobStore(redis_client, PREFIX), 10)
    assert (kept.id, kept.is_durable, kept.context) == ("kept", True, b"kept")
    (choice,), end = map(events.decode, kept.stream)
    assert choice == ChoiceEvent(0, [65, 66], "AB", "length", sequence_number=1)
    assert end == EndEvent(2, "completed", None, Usage(1, 2, 1))
    assert (sync.id, sync.is_durable, sync.context, list(sync.stream)) == ("sync", False, b"", [])
    assert kept.usage == sync.usage == Usage(1, 2, 1)
    assert kept.created <= kept.started <= kept.finished


@pytest.mark.integration
def test_forgotten_entries_are_not_read_again_and_expire(redis_client):
    run(redis_client, "kept")
    run(redis_client, "later")
    (first, _), _ = read_ended(JobStore(redis_client, PREFIX), 10)
    delete_entries(JobStore(redis_client, PREFIX), [first], 7)
    assert [job.id for job in read_ended(JobStore(redis_client, PREFIX), 10)[0]] == ["later"]
    assert 0 < redis_client.ttl(f"{PREFIX}job:kept") <= 7
    assert redis_client.ttl(f"{PREFIX}job:later") == -1


@pytest.mark.integration
def test_pages_go_on_where_the_last_one_ended_past_what_cannot_be_read(redis_client, caplog):
    run(redis_client, "first")
    redis_client.xadd(f"{PREFIX}usage", {"id": "foreign"})
    redis_client.xadd(f"{PREFIX}usage", {"kept": "1", "state": "completed"})
    run(redis_client, "last")
    pages, since = [], FIRST
    while since is not None:
        jobs, since = read_ended(JobStore(redis_client, PREFIX), 1, since)
        pages.append([job.id for job in jobs])
    assert pages == [["first"], [], [], ["last"], []]
    assert "cannot read ended job foreign" in caplog.text
