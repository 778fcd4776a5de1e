"""A relay on its bench, and jobs for it."""

import pytest

from completions.contract.job_request import JobRequest
from completions.jobs.connection import connect_async
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import Submission
from tests.workers.relay.bench import PREFIX, SAMPLING, Bench


@pytest.fixture
def bench(valkey, redis_client):
    made = Bench(valkey.url)
    yield made
    made.relay.stop()
    made.client.close()


@pytest.fixture
async def submit(valkey, redis_client):
    client = connect_async(valkey.url)
    submission = Submission(JobStore(client, PREFIX), "web-1")

    async def send(job_id="job", seconds=60.0, kind="background", organization=1, **extra):
        request = JobRequest(((1, 2),), SAMPLING, **extra)
        job = NewJob(job_id, kind, "m", organization, 1, request, b"", seconds, 60)
        await submission.submit(job)

    send.submission = submission
    yield send
    await client.aclose()
