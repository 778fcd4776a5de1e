"""The Lua scripts against a real server: claims, fences, endings, losses."""

import asyncio
import time
from dataclasses import replace

import orjson
import pytest
from msgspec import structs

from completions.contract.job_request import decode_job_request
from completions.contract.usage import Usage
from completions.jobs import operate
from completions.jobs.ended import read_ended
from completions.jobs.events import EndEvent, JobError
from completions.jobs.execute import Claim, Execution, NotClaimed, Verdict
from completions.jobs.limits import (
    Bounds,
    ByteBounds,
    BytesFullError,
    KeyQueueFullError,
    QueueFullError,
)
from completions.jobs.store import JobStore
from completions.jobs.submit import ModelUnservedError
from completions.maintenance.reconcile import correct_byte_sums, reconcile
from tests.completions.jobs.job_making import PREFIX, REQUEST, ending, new_job, step, stream

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("kind", "own", "celerys"),
    [
        ("stream", 0, 0), ("sync", 0, 3), ("background", 0, 6), ("background", 5, 0),
        ("sync", 100, 0), ("stream", -1, 6), ("background", -100, 6),
    ],
)  # fmt: skip
def test_a_requests_own_priority_goes_before_its_kinds(kind, own, celerys):
    assert new_job(kind=kind, request=structs.replace(REQUEST, priority=own)).priority == celerys


async def test_a_job_runs_from_submission_to_its_end(submission, worker, redis_client):
    await submission.submit(new_job())
    assert (await submission.fetch("cmpl-1")).state == "queued"

    (claim,) = worker.claim(["cmpl-1"])
    assert isinstance(claim, Claim)
    assert decode_job_request(claim.request) == REQUEST
    assert claim.organization_id == "7"
    assert 58 < claim.seconds_left <= 60

    verdicts, _ = worker.publish([step(claim, [(0, [5], "a", None, None)])], [])
    assert verdicts == [Verdict.GO_ON]
    _, written = worker.publish([step(claim, [(0, [6], "b", "stop", 6)], 2)], [ending(claim, 3)])
    assert written == [True]

    first, second, last = stream(redis_client)
    assert [event.sequence_number for event in (*first, *second, last)] == [1, 2, 3]
    assert second[0].matched_stop == 6
    assert last == EndEvent(3, "completed", None, Usage(2, 1))
    record = await submission.fetch("cmpl-1")
    assert record.state == "completed"
    assert record.usage == Usage(2, 1)
    assert record.created <= record.started <= record.first <= record.finished
    assert record.worker == worker.worker_id
    assert await submission.fetch("cmpl-nobody") is None
    assert redis_client.ttl(f"{PREFIX}job:cmpl-1") == -1  # kept until SQL has its result
    assert redis_client.ttl(f"{PREFIX}ev:cmpl-1") == -1
    ((_, entry),) = redis_client.xrange(f"{PREFIX}usage")
    assert entry[b"id"] == b"cmpl-1"
    assert orjson.loads(entry[b"usage"])["completion_tokens"] == 1
    assert redis_client.zcard(f"{PREFIX}open") == 0


async def test_an_end_stores_what_its_job_gained_last(submission, worker, redis_client):
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    last = replace(step(claim, [(0, [5], "a"), (0, [6], "b", "stop", 6)]), age=30.0)
    before = time.time()
    for _ in range(2):  # the first reply was lost
        worker.publish([], [replace(ending(claim, 3), last=last)])
    events, end = stream(redis_client)
    assert [event.sequence_number for event in events] == [1, 2]
    assert end == EndEvent(3, "completed", None, Usage(2, 1))
    record = await submission.fetch("cmpl-1")
    assert before - 30.1 <= record.first <= time.time() - 29.9  # when its tokens were generated


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_a_job_whose_last_gain_leaves_a_gap_goes_back(submission, worker, state):
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    gap = step(claim, [(0, [6], "b", "stop", 6)], 2)  # Redis has lost the one before
    _, written = worker.publish([], [replace(ending(claim, 3, state), last=gap)])
    assert written == [False]
    assert (await submission.fetch("cmpl-1")).state == "queued"


async def test_a_full_queue_and_an_unserved_model_refuse(submission, worker):
    await submission.submit(new_job("a"), Bounds(jobs=1))
    with pytest.raises(QueueFullError):
        await submission.submit(new_job("b"), Bounds(jobs=1))
    with pytest.raises(ModelUnservedError):
        await submission.submit(new_job("c", kind="sync", model="other"))
    await submission.submit(new_job("d", model="other"))  # background can wait
    await submission.renew_lease()
    await submission.submit(new_job("e", kind="sync"))


async def test_a_key_fills_only_its_own_part_of_the_queue(submission, worker, redis_client):
    bounds = Bounds(jobs_of_key=2)
    for job_id in ("a", "b"):
        await submission.submit(new_job(job_id), bounds)
    with pytest.raises(KeyQueueFullError):
        await submission.submit(new_job("c"), bounds)
    await submission.submit(new_job("others", api_key_id=9), bounds)
    await submission.submit(new_job("line", kind="batch"), bounds)  # its feeder counts those
    await submission.cancel("a")
    await submission.submit(new_job("c"), bounds)
    for job_id in ("b", "c"):
        await submission.cancel(job_id)
    assert not redis_client.exists(f"{PREFIX}queued:8")


async def test_a_key_and_an_organization_hold_only_their_part_of_the_bytes(submission, worker):
    size = new_job("a").size
    bounds = Bounds(bytes_of_key=2 * size, bytes_of_organization=3 * size)
    for job_id in ("a", "b"):
        await submission.submit(new_job(job_id), bounds)
    with pytest.raises(BytesFullError) as refused:
        await submission.submit(new_job("c"), bounds)
    assert (refused.value.of_organization, refused.value.held) == (False, 2 * size)
    await submission.submit(new_job("d", api_key_id=9), bounds)
    with pytest.raises(BytesFullError) as refused:
        await submission.submit(new_job("e", api_key_id=9), bounds)
    assert (refused.value.of_organization, refused.value.held) == (True, 3 * size)
    await submission.submit(new_job("others", api_key_id=10, organization_id=11), bounds)
    await submission.cancel("a")
    await submission.submit(new_job("c"), bounds)


async def test_an_idle_key_may_send_a_job_larger_than_its_part(submission, worker):
    bounds = Bounds(bytes_of_key=1, bytes_of_organization=1)
    await submission.submit(new_job("a"), bounds)
    with pytest.raises(BytesFullError):
        await submission.submit(new_job("b"), bounds)
    await submission.cancel("a")
    await submission.submit(new_job("b"), bounds)


@pytest.mark.parametrize("full", ["bytes", "bytes_of_class"])
async def test_a_queue_full_of_bytes_refuses_all(submission, worker, full):
    bounds = Bounds(**{full: 2 * new_job("a").size})
    for key in (1, 2):
        await submission.submit(new_job(f"job-{key}", api_key_id=key), bounds)
    with pytest.raises(QueueFullError) as refused:
        await submission.submit(new_job("c", api_key_id=3, organization_id=3), bounds)
    assert type(refused.value) is QueueFullError
    if full == "bytes_of_class":
        await submission.submit(new_job("d", kind="sync"), bounds)


async def test_lines_of_batches_leave_the_bytes_of_their_key_alone(submission, worker):
    await submission.submit(new_job("line", kind="batch"))
    size = new_job("a").size
    bounds = Bounds(bytes_of_key=size, bytes_of_organization=size, bytes_of_class=size)
    await submission.submit(new_job("a"), bounds)


async def test_sums_of_bytes_follow_from_the_open_jobs(submission, worker, redis_client):
    store = JobStore(redis_client, PREFIX)
    for job_id in ("a", "b", "lost"):
        await submission.submit(new_job(job_id))
    assert correct_byte_sums(store) == 0
    redis_client.delete(f"{PREFIX}job:lost")
    redis_client.hset(f"{PREFIX}bytes", "k99", 5)
    assert correct_byte_sums(store) == 5  # the four scopes of the lost job, and one of nobody
    size = str(2 * new_job("a").size).encode()
    scopes = {b"k8": size, b"o7": size, b"background": size, b"all": size}
    assert redis_client.hgetall(f"{PREFIX}bytes") == scopes


def test_shares_of_bytes_follow_from_maxmemory():
    bounds = ByteBounds.derive(512 * 2**20)
    assert (bounds.total, bounds.of_key, bounds.of_organization) == (2**28, 2**25, 2**26)
    assert ByteBounds.derive(0).total == 2 * 2**30
    set_by_hand = ByteBounds.derive(512 * 2**20, total=1000, of_key=100)
    assert set_by_hand == ByteBounds(1000, 750, 250, 200, 100)


async def test_a_job_that_was_never_seen_to_end_is_counted_until_its_deadline(
    submission, worker, redis_client
):
    late = {"seconds": -1000}
    await submission.submit(new_job("lost", **late), Bounds(jobs_of_key=1))
    redis_client.delete(f"{PREFIX}job:lost")
    await submission.submit(new_job("a"), Bounds(jobs_of_key=1))


async def test_jobs_submitted_at_once_are_judged_one_by_one(submission, worker, redis_client):
    """Also by a server that was restarted meanwhile, and knows no script."""
    await submission.submit(new_job("first"))
    redis_client.script_flush()
    jobs = [new_job("a"), new_job("b", kind="sync", model="other"), new_job("c")]
    found = await asyncio.gather(*(submission.submit(job) for job in jobs), return_exceptions=True)
    assert [type(each) for each in found] == [dict, ModelUnservedError, dict]
    assert await submission.states(["first", "a", "b", "c"]) == ["queued", "queued", None, "queued"]


async def test_repeating_a_published_step_changes_nothing(submission, worker, redis_client):
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    steps = [step(claim, [(0, [5], "a", None, None), (1, [6], "b", None, None)])]
    worker.publish(steps, [])
    worker.publish(steps, [])
    assert len(stream(redis_client)) == 1
    end = ending(claim, 3)
    assert worker.publish([], [end])[1] == [True]
    assert worker.publish([], [end])[1] == [False]
    assert redis_client.xlen(f"{PREFIX}usage") == 1


async def test_a_message_delivered_twice_runs_once(submission, worker, other_worker):
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    assert other_worker.claim(["cmpl-1"]) == [NotClaimed("cmpl-1", "elsewhere")]
    worker.publish([], [ending(claim, 1)])
    assert other_worker.claim(["cmpl-1"]) == [NotClaimed("cmpl-1", "done")]
    assert other_worker.claim(["nobody"]) == [NotClaimed("nobody", "gone")]


async def test_queued_and_running_jobs_are_cancelled(submission, worker, redis_client):
    await submission.submit(new_job("queued"))
    await submission.cancel("queued")
    assert (await submission.fetch("queued")).state == "cancelled"
    assert worker.claim(["queued"]) == [NotClaimed("queued", "done")]

    await submission.submit(new_job("running"))
    (claim,) = worker.claim(["running"])
    await submission.cancel("running")
    verdicts, _ = worker.publish([step(claim, [])], [])
    assert verdicts == [Verdict.CANCEL]
    worker.publish([], [ending(claim, 1, "cancelled")])
    await submission.cancel("running")  # no effect on what has ended
    assert (await submission.fetch("running")).state == "cancelled"
    assert redis_client.xlen(f"{PREFIX}usage") == 2


async def test_the_first_to_cancel_a_job_is_known(submission, worker, redis_client):
    store = JobStore(redis_client, PREFIX)
    await submission.submit(new_job("a"))
    (claim,) = worker.claim(["a"])
    await submission.cancel("a", "hang-up")
    operate.cancel(store, "a")
    worker.publish([], [ending(claim, 1, "cancelled")])
    await submission.submit(new_job("b"))
    operate.cancel(store, "b")
    await submission.submit(new_job("c", kind="sync"))
    (claim,) = worker.claim(["c"])
    await submission.drop_lease()
    assert worker.publish([step(claim, [])], [])[0] == [Verdict.CANCEL]
    worker.publish([], [ending(claim, 1, "cancelled")])
    ended, _ = read_ended(store, 10)
    assert {job.id: job.cancelled_by for job in ended} == {
        "a": "hang-up",
        "b": "operator",
        "c": "web",
    }


async def test_deadlines_end_jobs_that_wait(submission, worker, redis_client):
    late = {"seconds": -1}
    await submission.submit(new_job("claimed", **late))
    await submission.submit(new_job("forgotten", **late))
    assert worker.claim(["claimed"]) == [NotClaimed("claimed", "done")]
    redis_client.zadd(f"{PREFIX}open", {"forgotten": 0})
    assert reconcile(JobStore(redis_client, PREFIX)) == []
    for job_id in ("claimed", "forgotten"):
        assert stream(redis_client, job_id)[-1].error.code == "queue_timeout"


async def test_the_pause_before_a_message_is_published_again_doubles(submission, redis_client):
    await submission.submit(new_job(seconds=9999))
    pauses = []
    for _ in range(4):
        redis_client.zadd(f"{PREFIX}open", {"cmpl-1": 0})
        assert len(reconcile(JobStore(redis_client, PREFIX))) == 1
        pauses.append(round(redis_client.zscore(f"{PREFIX}open", "cmpl-1") - time.time()))
    assert pauses == [30, 60, 120, 240]


async def test_what_was_generated_is_billed_whoever_ends_the_job(submission, worker, redis_client):
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    worker.publish([step(claim, [(0, [5, 6], "ab", None, None), (1, [7], "c", None, None)])], [])
    worker.release([("cmpl-1", claim.attempt)], lost=False)
    await submission.cancel("cmpl-1")
    assert stream(redis_client)[-1] == EndEvent(3, "cancelled", None, Usage(2, 3))
    assert (await submission.fetch("cmpl-1")).usage == Usage(2, 3)


async def test_errors_are_kept(submission, worker):
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    error = JobError("grammar_error", "no way on")
    worker.publish([], [ending(claim, 1, "failed", error)])
    assert (await submission.fetch("cmpl-1")).error == error


async def test_an_end_without_the_tokens_before_it_is_not_written(submission, worker):
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    _, written = worker.publish([], [ending(claim, 2)])
    assert written == [False]
    assert (await submission.fetch("cmpl-1")).state == "queued"


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_wrong_clock_of_the_web_host_does_not_change_deadlines(
    submission, worker, monkeypatch, hours
):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    await submission.submit(new_job(seconds=60))
    (claim,) = worker.claim(["cmpl-1"])
    assert 50 < claim.seconds_left <= 60
    fetched = await submission.fetch("cmpl-1")  # as for a stream that is resumed
    assert 30 < fetched.seconds_left <= 61


async def test_a_wrong_clock_of_a_worker_does_not_make_its_model_unavailable(
    submission, redis_client, monkeypatch
):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    Execution(JobStore(redis_client, PREFIX), "worker-1").beat("m", {})
    monkeypatch.setattr(time, "time", real)
    await submission.submit(new_job(kind="stream"))


async def test_calls_of_one_round_trip_are_done_in_their_order_or_not_at_all(
    submission, worker, redis_client
):
    """Redis knows the script of the second call, but not yet that of the first."""
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    redis_client.script_flush()
    store = JobStore(redis_client, PREFIX)
    fresh = Execution(store, "worker-1")
    redis_client.script_load(store._scripts["finish"].script)
    choices = [(0, [5], "a", "stop", None)]
    _, written = fresh.publish([step(claim, choices)], [ending(claim, 2)])
    assert written == [True]
    assert len(stream(redis_client)) == 2
