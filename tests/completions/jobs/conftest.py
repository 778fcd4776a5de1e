"""A submission of a live web process, and workers, on the private Valkey."""

import pytest

from completions.jobs.connection import connect_async
from completions.jobs.execute import Execution
from completions.jobs.store import JobStore
from completions.jobs.submit import Submission
from tests.completions.jobs.job_making import PREFIX


@pytest.fixture
async def submission(valkey, redis_client):
    client = connect_async(valkey.url)
    bound = Submission(JobStore(client, PREFIX), "web-1")
    await bound.renew_lease()
    yield bound
    await client.aclose()


@pytest.fixture
def worker(redis_client):
    execution = Execution(JobStore(redis_client, PREFIX), "worker-1")
    execution.beat("m", {})
    return execution


@pytest.fixture
def other_worker(redis_client):
    execution = Execution(JobStore(redis_client, PREFIX), "worker-2")
    execution.beat("m", {})
    return execution
