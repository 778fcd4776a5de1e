"""Workers, web processes and Redis that go: who takes a job over, and who is fenced off."""

import time

import pytest

from completions.jobs.execute import (
    MAX_WORKER_FAILURES,
    Claim,
    Execution,
    NotClaimed,
    PublishedOutput,
    Verdict,
)
from completions.jobs.store import JobStore
from completions.jobs.submit import WEB_LEASE, submit_durable
from completions.maintenance.reconcile import RECHECKS, reconcile
from tests.completions.jobs.job_making import PREFIX, die, ending, new_job, step, stream

pytestmark = pytest.mark.integration


async def test_a_dead_workers_job_goes_on_and_the_dead_is_fenced_off(
    submission, worker, other_worker, redis_client
):
    await submission.submit(new_job())
    (old,) = worker.claim(["cmpl-1"])
    worker.publish([step(old, [(0, [5], "a", None, None)])], [])
    die(redis_client, worker)

    (new,) = other_worker.claim(["cmpl-1"])
    assert new.attempt == old.attempt + 1
    assert new.sequence_number == 2
    assert other_worker.read_published("cmpl-1") == PublishedOutput({0: [5]}, set())

    verdicts, written = worker.publish(
        [step(old, [(0, [9], "x", None, None)], 2)], [ending(old, 3)]
    )
    assert verdicts == [Verdict.NOT_YOURS]
    assert written == [False]
    other_worker.publish([step(new, [(0, [6], "b", "length", None)])], [ending(new, 3)])
    text = "".join(c.text for event in stream(redis_client)[:-1] for c in event)
    assert text == "ab"


async def test_a_job_that_kills_its_workers_fails(submission, redis_client):
    await submission.submit(new_job())
    for attempt in range(MAX_WORKER_FAILURES):
        execution = Execution(JobStore(redis_client, PREFIX), f"victim-{attempt}")
        execution.beat("m", {})
        (claim,) = execution.claim(["cmpl-1"])
        assert isinstance(claim, Claim)
        die(redis_client, execution)
    last = Execution(JobStore(redis_client, PREFIX), "last")
    assert last.claim(["cmpl-1"]) == [NotClaimed("cmpl-1", "done")]
    assert stream(redis_client)[-1].error.code == "worker_error"


async def test_a_released_job_is_not_counted_as_a_loss(submission, worker, redis_client):
    await submission.submit(new_job())
    for _ in range(MAX_WORKER_FAILURES + 2):
        (claim,) = worker.claim(["cmpl-1"])
        worker.release([("cmpl-1", claim.attempt)], lost=False)
    assert [lost.job_id for lost in reconcile(JobStore(redis_client, PREFIX))] == ["cmpl-1"]


async def test_a_dead_web_process_takes_its_jobs_along(submission, worker, redis_client):
    await submission.renew_lease()
    await submission.submit(new_job("running", kind="stream"))
    (claim,) = worker.claim(["running"])
    await submission.submit(new_job("queued", kind="sync"))
    await submission.drop_lease()
    assert worker.publish([step(claim, [])], [])[0] == [Verdict.CANCEL]
    assert worker.claim(["queued"]) == [NotClaimed("queued", "done")]
    assert stream(redis_client, "queued")[-1].state == "cancelled"


@pytest.mark.parametrize("kind", ["sync", "stream"])
async def test_submitting_renews_the_lease_of_the_web_process(
    submission, worker, redis_client, kind
):
    """It may have started, or waited for longer than its lease, while Redis was away."""
    await submission.drop_lease()
    await submission.submit(new_job("cmpl-1", kind))
    assert 0 < redis_client.ttl(f"{PREFIX}web:web-1") <= WEB_LEASE
    (claim,) = worker.claim(["cmpl-1"])
    assert worker.publish([step(claim, [])], [])[0] == [Verdict.GO_ON]


async def test_the_reconciler_finds_lost_messages_once(submission, worker, redis_client):
    await submission.submit(new_job("lost"))
    assert reconcile(JobStore(redis_client, PREFIX)) == []  # too young
    redis_client.zadd(f"{PREFIX}open", {"lost": 0})
    (lost,) = reconcile(JobStore(redis_client, PREFIX))
    assert (lost.job_id, lost.model, lost.priority) == ("lost", "m", 6)
    assert reconcile(JobStore(redis_client, PREFIX)) == []  # not again at once

    worker.claim(["lost"])
    redis_client.zadd(f"{PREFIX}open", {"lost": 0})
    assert reconcile(JobStore(redis_client, PREFIX)) == []  # it runs
    die(redis_client, worker)
    redis_client.zadd(f"{PREFIX}open", {"lost": 0})
    assert len(reconcile(JobStore(redis_client, PREFIX))) == 1


async def test_the_death_of_a_worker_is_noticed_although_its_job_waited_long(
    submission, worker, redis_client
):
    """The pause before the next message of a job that waits doubles, up to an hour."""
    await submission.submit(new_job(seconds=9999))
    for _ in range(8):
        redis_client.zadd(f"{PREFIX}open", {"cmpl-1": 0})
        reconcile(JobStore(redis_client, PREFIX))
    worker.claim(["cmpl-1"])
    assert reconcile(JobStore(redis_client, PREFIX)) == []
    assert redis_client.zscore(f"{PREFIX}open", "cmpl-1") <= time.time() + RECHECKS[1] + 1


@pytest.mark.parametrize("why", ["cancelled by its client", "its web process is gone"])
async def test_an_unwanted_job_of_a_dead_worker_ends_without_another_worker(
    submission, worker, redis_client, why
):
    await submission.submit(new_job(kind="stream"))
    worker.claim(["cmpl-1"])
    if why == "cancelled by its client":
        await submission.cancel("cmpl-1")
    else:
        await submission.drop_lease()
    redis_client.zadd(f"{PREFIX}open", {"cmpl-1": 0})
    assert reconcile(JobStore(redis_client, PREFIX)) == []
    assert (await submission.fetch("cmpl-1")).state == "running"  # its worker will end it

    die(redis_client, worker)
    redis_client.zadd(f"{PREFIX}open", {"cmpl-1": 0})
    assert reconcile(JobStore(redis_client, PREFIX)) == []
    assert (await submission.fetch("cmpl-1")).state == "cancelled"


async def test_a_claim_whose_reply_was_lost_is_given_again(submission, worker, redis_client):
    await submission.submit(new_job())
    (first,) = worker.claim(["cmpl-1"])
    (again,) = worker.claim(["cmpl-1"])
    assert (again.attempt, again.request) == (first.attempt, first.request)
    assert worker.publish([], [ending(again, 1)])[1] == [True]


async def test_a_worker_that_never_ends_a_job_loses_it(submission, worker, redis_client):
    await submission.submit(new_job(seconds=60))
    (claim,) = worker.claim(["cmpl-1"])
    redis_client.hset(f"{PREFIX}job:cmpl-1", "deadline", time.time() - 61)
    redis_client.zadd(f"{PREFIX}open", {"cmpl-1": 0})
    assert reconcile(JobStore(redis_client, PREFIX)) == []
    assert stream(redis_client)[-1].error.code == "generation_timeout"
    assert worker.publish([step(claim, [])], [])[0] == [Verdict.NOT_YOURS]


async def test_background_jobs_survive_the_loss_of_redis(submission, redis_client, worker):
    job = new_job()
    await submission.submit(job)
    assert submit_durable(JobStore(redis_client, PREFIX), [job]) == [False]
    redis_client.flushall()
    assert submit_durable(JobStore(redis_client, PREFIX), [job]) == [True]
    assert [lost.job_id for lost in reconcile(JobStore(redis_client, PREFIX))] == ["cmpl-1"]


async def test_a_redis_that_lost_its_last_second_has_the_tokens_made_again(
    submission, worker, other_worker, redis_client
):
    """It came back from its append-only file without the second of three events."""
    await submission.submit(new_job())
    (claim,) = worker.claim(["cmpl-1"])
    worker.publish([step(claim, [(0, [5], "a", None, None)])], [])
    lost = step(claim, [(0, [7], "c", "stop", None)], 3)
    verdicts, written = worker.publish([lost], [ending(claim, 4)])
    assert verdicts == [Verdict.NOT_YOURS]
    assert written == [False]
    assert (await submission.fetch("cmpl-1")).state == "queued"
    assert [job.job_id for job in reconcile(JobStore(redis_client, PREFIX))] == ["cmpl-1"]

    (again,) = other_worker.claim(["cmpl-1"])
    assert again.sequence_number == 2
    assert other_worker.read_published("cmpl-1") == PublishedOutput({0: [5]}, set())


async def test_a_job_that_breaks_every_engine_fails_even_if_each_reports_it(
    submission, worker, redis_client
):
    await submission.submit(new_job())
    for _ in range(MAX_WORKER_FAILURES):
        (claim,) = worker.claim(["cmpl-1"])
        worker.release([("cmpl-1", claim.attempt)], lost=True)
    assert worker.claim(["cmpl-1"]) == [NotClaimed("cmpl-1", "done")]
    assert (await submission.fetch("cmpl-1")).error.code == "worker_error"


async def test_a_job_that_breaks_workers_is_separated_from_its_neighbours(
    submission, worker, redis_client
):
    """Both have lost two workers; one more would end either, so they run one after the other."""
    for name in ("cmpl-1", "cmpl-2"):
        await submission.submit(new_job(name))
    for _ in range(MAX_WORKER_FAILURES - 1):
        claims = worker.claim(["cmpl-1", "cmpl-2"])
        worker.release([(claim.job_id, claim.attempt) for claim in claims], lost=True)

    first, second = worker.claim(["cmpl-1", "cmpl-2"])
    assert (first.job_id, second) == ("cmpl-1", NotClaimed("cmpl-2", "elsewhere"))
    worker.publish([], [ending(first, 1)])
    (second,) = worker.claim(["cmpl-2"])
    assert second.job_id == "cmpl-2"


async def test_a_job_that_waits_for_another_to_run_alone_loses_no_further_worker(
    submission, worker, redis_client
):
    """Its last worker died. Each message that finds it still waiting is another claim."""
    for name in ("cmpl-1", "cmpl-2"):
        await submission.submit(new_job(name))
    for attempt in range(MAX_WORKER_FAILURES - 1):
        victim = Execution(JobStore(redis_client, PREFIX), f"victim-{attempt}")
        victim.beat("m", {})
        victim.claim(["cmpl-1", "cmpl-2"])
        die(redis_client, victim)

    (first,) = worker.claim(["cmpl-1"])
    for _ in range(MAX_WORKER_FAILURES):
        assert worker.claim(["cmpl-2"]) == [NotClaimed("cmpl-2", "elsewhere")]
        redis_client.zadd(f"{PREFIX}open", {"cmpl-2": 0})
        assert [lost.job_id for lost in reconcile(JobStore(redis_client, PREFIX))] == ["cmpl-2"]
    worker.publish([], [ending(first, 1)])
    (second,) = worker.claim(["cmpl-2"])
    assert second.job_id == "cmpl-2"


@pytest.mark.parametrize(
    "missing",
    ["kind", "model", "organization", "key", "priority", "created", "deadline", "ttl", "web",
     "attempt", "seq", "prompt_tokens", "request"],
)  # fmt: skip
async def test_a_malformed_record_is_removed_and_does_not_stop_others(
    submission, worker, redis_client, missing
):
    for job_id in ("half", "whole", "half-2"):
        await submission.submit(new_job(job_id))
        redis_client.zadd(f"{PREFIX}open", {job_id: 0})
    redis_client.hdel(f"{PREFIX}job:half", missing)
    redis_client.hdel(f"{PREFIX}job:half-2", missing)
    assert_only_the_whole_one_is_kept(worker, redis_client)


@pytest.mark.parametrize(
    "damaged", ["priority", "created", "deadline", "ttl", "attempt", "seq", "prompt_tokens"]
)
async def test_a_record_without_numbers_is_removed_and_does_not_stop_others(
    submission, worker, redis_client, damaged
):
    for job_id in ("half", "whole", "half-2"):
        await submission.submit(new_job(job_id))
        redis_client.zadd(f"{PREFIX}open", {job_id: 0})
    redis_client.hset(f"{PREFIX}job:half", damaged, "soon")
    redis_client.hset(f"{PREFIX}job:half-2", damaged, "soon")
    assert_only_the_whole_one_is_kept(worker, redis_client)


def assert_only_the_whole_one_is_kept(worker, redis_client):
    claimed = worker.claim(["half", "whole"])
    assert claimed[0] == NotClaimed("half", "foreign")
    assert isinstance(claimed[1], Claim)
    reconcile(JobStore(redis_client, PREFIX))
    assert redis_client.zrange(f"{PREFIX}open", 0, -1) == [b"whole"]
    assert redis_client.smembers(f"{PREFIX}depth:background") == {b"whole"}
