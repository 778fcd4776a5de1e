"""What the operator sees of jobs in Redis, and does to them."""

import pytest

from completions.contract.job_request import JobRequest, decode_job_request
from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs import operate
from completions.jobs.connection import connect_async
from completions.jobs.events import ChoiceEvent, JobError
from completions.jobs.execute import Ending, Execution, StepEvent, Verdict
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import Submission
from completions.maintenance.reconcile import reconcile
from tests.completions.jobs.job_making import PREFIX

pytestmark = pytest.mark.integration

REQUEST = JobRequest(((1, 2),), SamplingParams(max_tokens=9))


@pytest.fixture
async def submit(valkey, redis_client):
    async with connect_async(valkey.url) as client:
        submission = Submission(JobStore(client, PREFIX), "web-1")

        async def send(job_id, kind="background"):
            await submission.renew_lease()
            job = NewJob(job_id, kind, "m", 7, 8, REQUEST, b"", 60, 100)
            await submission.submit(job)

        yield send


async def test_open_jobs_are_listed_as_they_stand(submit, worker, redis_client):
    await submit("first")
    await submit("second", kind="stream")
    (claim,) = worker.claim(["first"])
    worker.publish(
        [StepEvent("first", claim.attempt, 1, [ChoiceEvent(0, [5, 6], "ab", None, None)])], []
    )
    jobs, total = operate.list_open_jobs(JobStore(redis_client, PREFIX))
    assert total == 2
    running, queued = jobs
    assert (running.id, running.state, running.worker) == ("first", "running", "worker-1")
    assert (running.organization_id, running.api_key_id, running.attempt) == (7, 8, 1)
    assert (running.prompt_tokens, running.generated) == (2, 2)
    assert running.started is not None
    assert (queued.id, queued.state, queued.kind, queued.worker) == (
        "second", "queued", "stream", "",
    )  # fmt: skip


async def test_queued_jobs_are_counted_beyond_those_listed(
    submit, worker, redis_client, monkeypatch
):
    monkeypatch.setattr(operate, "MAX_LISTED", 2)
    for name in "abcd":
        await submit(name, kind="stream" if name == "d" else "sync")
    worker.claim(["a"])
    store = JobStore(redis_client, PREFIX)
    assert len(operate.list_open_jobs(store)[0]) == 2
    model = operate.list_open_jobs(store)[0][0].model
    assert operate.count_queued(store) == {(model, "sync"): 2, (model, "stream"): 1}


async def test_a_jobs_details_while_it_runs_and_after(submit, worker, redis_client):
    await submit("job")
    (claim,) = worker.claim(["job"])
    found = operate.read_job(JobStore(redis_client, PREFIX), "job")
    assert found is not None
    assert decode_job_request(found.request) == REQUEST
    assert (found.finished, found.error, found.usage) == (None, None, None)
    error = JobError("worker_error", "because")
    worker.publish([], [Ending("job", claim.attempt, 1, "failed", error, Usage(2, 1))])
    found = operate.read_job(JobStore(redis_client, PREFIX), "job")
    assert found is not None
    assert (found.state, found.has_ended, found.worker) == ("failed", True, worker.worker_id)
    assert (found.request, found.error, found.usage) == (b"", error, Usage(2, 1))
    assert operate.list_open_jobs(JobStore(redis_client, PREFIX)) == ([], 0)
    assert operate.read_job(JobStore(redis_client, PREFIX), "nobody") is None


async def test_a_requeued_job_leaves_its_worker_and_goes_on_elsewhere(submit, worker, redis_client):
    await submit("job")
    (claim,) = worker.claim(["job"])
    worker.publish([StepEvent("job", claim.attempt, 1, [ChoiceEvent(0, [5], "a", None, None)])], [])
    assert operate.requeue(JobStore(redis_client, PREFIX), "job") == "running"
    verdicts, _ = worker.publish([StepEvent("job", claim.attempt, 2, [])], [])
    assert verdicts == [Verdict.NOT_YOURS]
    assert [lost.job_id for lost in reconcile(JobStore(redis_client, PREFIX))] == ["job"]
    other = Execution(JobStore(redis_client, PREFIX), "worker-2")
    other.beat("m", {})
    (again,) = other.claim(["job"])
    assert (again.attempt, again.sequence_number) == (2, 2)
    assert redis_client.hget(f"{PREFIX}job:job", "losses") == b"0"  # it killed nobody


async def test_a_queued_jobs_message_is_published_again(submit, redis_client):
    await submit("job")
    assert reconcile(JobStore(redis_client, PREFIX)) == []
    assert operate.requeue(JobStore(redis_client, PREFIX), "job") == "queued"
    assert [lost.job_id for lost in reconcile(JobStore(redis_client, PREFIX))] == ["job"]


async def test_what_has_ended_stays_so(submit, redis_client):
    await submit("job")
    assert operate.cancel(JobStore(redis_client, PREFIX), "job") == "queued"
    assert operate.requeue(JobStore(redis_client, PREFIX), "job") == "cancelled"
    assert operate.cancel(JobStore(redis_client, PREFIX), "job") == "cancelled"
    assert redis_client.hget(f"{PREFIX}job:job", "state") == b"cancelled"
    assert operate.requeue(JobStore(redis_client, PREFIX), "nobody") is None
    assert not redis_client.exists(f"{PREFIX}job:nobody")
