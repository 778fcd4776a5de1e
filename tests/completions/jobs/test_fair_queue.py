"""Whose job a worker gets next."""

import pytest
from msgspec import structs

from completions.contract.sampling import SamplingParams
from completions.jobs.execute import Room
from completions.jobs.new_job import Level
from completions.jobs.store import JobStore
from completions.maintenance.reconcile import reconcile
from tests.completions.jobs.job_making import PREFIX, REQUEST, die, new_job

pytestmark = pytest.mark.integration

PLENTY = 10**9


def rooms(sequences=100, size=PLENTY, guests=0, held=()):
    return [Room(level, sequences, size, guests, held) for level in Level]


def take(worker, *args, messages=(), **room):
    return [claim.job_id for claim in worker.take("m", rooms(*args, **room), messages).claims]


@pytest.fixture
def submit(submission, worker):
    async def send(*names, organization=7, key=8, kind="sync", **request):
        for name in names:
            fields = {"organization_id": organization, "api_key_id": key}
            await submission.submit(
                new_job(name, kind, request=structs.replace(REQUEST, **request), **fields)
            )

    return send


async def test_organizations_then_keys_take_turns(submit, worker):
    await submit("a1", "a2", "a3", organization=1, key=1)
    await submit("b1", "b2", organization=2, key=2)
    await submit("a4", organization=1, key=3)
    assert take(worker) == ["a1", "b1", "a4", "b2", "a2", "a3"]


async def test_who_begins_to_wait_gets_the_next_turn_but_others(submit, worker):
    await submit("a1", "a2", "a3", organization=1)
    assert take(worker, 1) == ["a1"]
    await submit("b1", organization=2)
    assert take(worker, 2) == ["a2", "b1"]


async def test_models_have_lines_of_their_own(submission, submit, worker):
    await submission.submit(new_job("other", model="other"))
    await submit("own")
    assert take(worker) == ["own"]


async def test_levels_come_one_after_another(submit, worker):
    await submit("line", kind="batch", priority=-1_000_000)
    await submit("patient", priority=-1)
    await submit("background", kind="background")
    await submit("stream", kind="stream")
    await submit("call", kind="sync")
    await submit("urgent", kind="background", priority=1)
    assert take(worker) == ["urgent", "stream", "call", "patient", "background", "line"]


@pytest.mark.parametrize(
    ("kind", "priority", "level"),
    [
        ("sync", 0, Level.LIVE),
        ("stream", 0, Level.LIVE),
        ("background", 0, Level.BACKGROUND),
        ("stream", -1, Level.BACKGROUND),
        ("background", 1, Level.URGENT),
        ("batch", -1_000_000, Level.BATCH),
    ],
)
def test_the_level_follows_from_kind_and_priority(kind, priority, level):
    assert new_job(kind=kind, request=structs.replace(REQUEST, priority=priority)).level == level


async def test_room_counts_sequences_and_bytes(submit, worker):
    await submit("a", "b", "c", sampling=SamplingParams(n=3))
    assert take(worker, 4) == ["a", "b"]  # the last may exceed it
    assert take(worker, size=1) == ["c"]
    await submit("d")
    assert take(worker, 0) == take(worker, size=0) == []


async def test_a_full_worker_takes_one_job_of_each_organization_that_has_none_there(submit, worker):
    for n in range(1, 6):
        await submit(f"{n}-1", f"{n}-2", organization=n)
    assert take(worker, 0, guests=2, held=("1", "3")) == ["2-1", "4-1"]


async def test_who_has_just_had_a_turn_is_no_guest(submit, worker):
    await submit("a1", "a2", organization=1)
    assert take(worker, 1, guests=9) == ["a1"]


async def test_a_lost_reply_is_repeated(submit, worker):
    await submit("a", "b")
    assert take(worker, 1) == ["a"]
    worker._takes -= 1
    assert take(worker, 1) == ["a"]
    assert take(worker, 1) == ["b"]


async def test_what_was_given_back_goes_before_what_came_later(submit, worker):
    await submit("a", "b")
    (claim, *_) = worker.take("m", rooms(1)).claims
    await submit("c")
    worker.release([(claim.job_id, claim.attempt)], lost=False)
    assert take(worker) == ["a", "b", "c"]


async def test_jobs_of_a_dead_worker_stand_in_line_again(
    submit, worker, other_worker, redis_client
):
    await submit("a")
    assert take(worker) == ["a"]
    die(redis_client, worker)
    redis_client.zadd(f"{PREFIX}open", {"a": 0})
    assert [lost.job_id for lost in reconcile(JobStore(redis_client, PREFIX))] == ["a"]
    assert take(other_worker) == ["a"]


async def test_a_message_of_a_dead_workers_job_puts_it_in_line(
    submit, worker, other_worker, redis_client
):
    await submit("a")
    assert take(worker) == ["a"]
    die(redis_client, worker)
    assert take(other_worker, messages=["a"]) == ["a"]


async def test_messages_whose_jobs_need_no_worker_are_settled(
    submission, submit, worker, other_worker, redis_client
):
    await submit("waits", "ended", "old")
    await submission.cancel("ended")
    redis_client.hdel(f"{PREFIX}job:old", "level")
    await submit("elsewhere", organization=1)
    assert other_worker.claim(["elsewhere"])[0].attempt == 1
    names = ["waits", "ended", "old", "elsewhere", "unknown"]
    assert worker.take("m", rooms(0), names).settled == {
        "ended": "done", "old": "unqueued", "elsewhere": "elsewhere", "unknown": "gone",
    }  # fmt: skip


async def test_a_line_that_another_version_has_left_behind_does_no_harm(
    submit, worker, redis_client
):
    await submit("ended", "expired", "waits")
    redis_client.hset(f"{PREFIX}job:ended", "state", "completed")
    redis_client.delete(f"{PREFIX}job:expired")
    assert take(worker) == ["waits"]
