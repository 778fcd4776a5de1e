"""Messages on another server than the jobs: what a client learns when it does not answer."""

import logging

import pytest
from redis.exceptions import ConnectionError

from completions.jobs.connection import connect_async
from completions.jobs.limits import UNBOUNDED
from completions.jobs.store import JobStore
from completions.jobs.submit import Broker, Message, Submission
from tests.completions.jobs.job_making import PREFIX, new_job

pytestmark = pytest.mark.integration

MESSAGE = Message("gen.m", b"{}")


class Silent(Broker):
    """The server may have taken the message, but its reply is lost."""

    async def publish(self, message: Message) -> None:
        await super().publish(message)
        raise ConnectionError("the broker is gone")


@pytest.fixture
async def submission(valkey, redis_client):
    client = connect_async(valkey.url)
    store = JobStore(client, PREFIX)
    bound = Submission(store, "web-1", Silent(store))
    await bound.renew_lease()
    yield bound
    await client.aclose()


async def test_a_job_that_nobody_waits_for_is_accepted(submission, worker, redis_client, caplog):
    """It is stored, and the reconciler publishes it: refusing it would be wrong, since a worker may
    run it already."""
    with caplog.at_level(logging.WARNING):
        assert await submission.submit(new_job(), UNBOUNDED, MESSAGE) == {}
    assert "cmpl-1 is queued, but its message is not sent yet" in caplog.text
    assert (await submission.fetch("cmpl-1")).state == "queued"
    assert redis_client.zscore(f"{PREFIX}open", "cmpl-1") is not None
    assert await submission.submit(new_job(), UNBOUNDED, MESSAGE) == {}, "a repeated submission"


@pytest.mark.parametrize("kind", ["sync", "stream"])
async def test_a_client_that_waits_learns_of_it_at_once(submission, worker, kind):
    with pytest.raises(ConnectionError):
        await submission.submit(new_job(kind=kind), UNBOUNDED, MESSAGE)
