"""A worker whose jobs lie in several shards, of which one goes and comes back."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from completions.jobs.connection import connect
from completions.jobs.execute import Room, Verdict
from completions.jobs.new_job import Level
from completions.jobs.sharding.execution import ShardedExecution
from completions.jobs.sharding.shards import name_shard
from completions.jobs.store import JobStore, SyncStore
from completions.jobs.submit import submit_durable
from completions.models.timed_ids import new_id
from tests.completions.jobs.job_making import ending, new_job, step
from tests.conftest import PrivateValkey
from tests.valkey_cluster import until

pytestmark = pytest.mark.integration


def rooms(sequences: int) -> list[Room]:
    return [Room(Level.BACKGROUND, sequences, 10**6, 0)]


@pytest.fixture
def second() -> Iterator[PrivateValkey]:
    """The server of the second shard."""
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        server = PrivateValkey(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def stores(redis_client, second) -> list[SyncStore]:
    return [JobStore(redis_client, "q:{0}:"), JobStore(connect(second.url), "q:{1}:")]


@pytest.fixture
def worker(stores) -> ShardedExecution:
    execution = ShardedExecution(stores, "worker-1")
    execution.beat("m", {})
    return execution


def submit(stores: list[SyncStore], organization_id: int, count: int) -> list[str]:
    ids = [name_shard(new_id("cmpl-"), organization_id, 2) for _ in range(count)]
    jobs = [new_job(job_id, organization_id=organization_id) for job_id in ids]
    assert submit_durable(stores[organization_id % 2], jobs) == [True] * count
    return ids


def test_shards_take_turns_within_one_room(stores, worker) -> None:
    for organization_id in (2, 3):
        submit(stores, organization_id, 4)
    taken = [worker.take("m", rooms(1)).claims for _ in range(4)]
    assert [[claim.organization_id for claim in claims] for claims in taken] == [
        ["2"],
        ["3"],
        ["2"],
        ["3"],
    ]
    assert len(worker.take("m", rooms(3)).claims) == 3  # of both
    assert [claim.organization_id for claim in worker.take("m", rooms(3)).claims] == ["3"]


def test_what_is_published_to_a_shard_that_is_down_arrives_later(stores, worker, second) -> None:
    submit(stores, 2, 1)
    submit(stores, 3, 1)
    up, down = sorted(worker.take("m", rooms(4)).claims, key=lambda claim: claim.organization_id)
    second.stop()
    steps = [step(down, [(0, [5], "a", None, None)]), step(up, [(0, [6], "b", None, None)])]
    verdicts, written = worker.publish(steps, [])
    assert (verdicts, written) == ([Verdict.GO_ON] * 2, [])
    verdicts, written = worker.publish([], [ending(down, 2), ending(up, 2)])
    assert written == [True, True]
    assert stores[0].client.hget(stores[0].keys.job(up.job_id), "state") == b"completed"
    assert worker.take("m", rooms(4)).claims == []
    second.start()
    until(lambda: worker.beat("m", {}) or has_ended(stores[1], down.job_id), "the job ends")
    assert len(stores[1].client.xrange(stores[1].keys.ev(down.job_id))) == 2


def has_ended(store: SyncStore, job_id: str) -> bool:
    try:
        return store.client.hget(store.keys.job(job_id), "state") == b"completed"
    except RedisError:
        return False


def test_a_worker_that_no_shard_answers_raises(tmp_path) -> None:
    store = JobStore(connect(f"unix://{tmp_path}/absent.sock"), "q:{0}:")
    alone = ShardedExecution([store, store], "worker-1")
    with pytest.raises(RedisError):
        alone.beat("m", {})
    with pytest.raises(RedisError):
        alone.take("m", rooms(1))
