"""Callers' own ids against a real server."""

import pytest

from completions.jobs.connection import connect_async
from completions.jobs.rids import RID_TTL, Rids, RidTakenError
from completions.jobs.store import JobStore

pytestmark = pytest.mark.integration


@pytest.fixture
async def rids(valkey, redis_client):
    client = connect_async(valkey.url)
    yield Rids(JobStore(client, "t:"))
    await client.aclose()


async def test_an_id_is_taken_for_a_day_per_key(rids, redis_client):
    await rids.take(1, ["a", "b"], "job-1")
    await rids.take(2, ["a"], "job-2")
    assert RID_TTL - 5 < redis_client.ttl("t:rid:1:a") <= RID_TTL


async def test_all_or_none(rids):
    await rids.take(1, ["b"], "job-1")
    with pytest.raises(RidTakenError, match=r"^b$"):
        await rids.take(1, ["a", "b", "c"], "job-2")
    await rids.take(1, ["a", "c"], "job-3")


async def test_a_job_frees_only_its_own_ids(rids):
    await rids.take(1, ["a"], "job-1")
    await rids.free(1, ["a", "never"], "job-2")
    with pytest.raises(RidTakenError):
        await rids.take(1, ["a"], "job-2")
    await rids.free(1, ["a"], "job-1")
    await rids.take(1, ["a"], "job-2")
