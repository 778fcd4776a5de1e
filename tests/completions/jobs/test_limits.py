"""Limits of API keys, against a real server: exact under concurrency, given back, healed."""

import asyncio
import time

import pytest

from completions.contract.usage import Usage
from completions.jobs.connection import connect, connect_async
from completions.jobs.execute import Ending
from completions.jobs.limits import Allowance, LimitReachedError, Limits, LimitsUsed
from completions.jobs.new_job import NewJob
from completions.jobs.operate import read_limits_used
from completions.jobs.store import JobStore
from completions.jobs.submit import Submission, submit_durable
from completions.maintenance.reconcile import reconcile
from tests.completions.jobs.job_making import PREFIX, limited_job

pytestmark = pytest.mark.integration


async def refused(submission: Submission, job: NewJob) -> LimitReachedError:
    with pytest.raises(LimitReachedError) as caught:
        await submission.submit(job)
    return caught.value


@pytest.mark.usefixtures("worker")
async def test_no_more_requests_than_the_limit_from_two_processes(valkey) -> None:
    clients = [connect_async(valkey.url) for _ in range(2)]
    processes = [
        Submission(JobStore(client, PREFIX), f"web-{i}") for i, client in enumerate(clients)
    ]
    limits = Limits({"requests": 50})
    began = time.monotonic()
    calls = [processes[i % 2].submit(limited_job(f"j{i}", limits)) for i in range(200)]
    replies = await asyncio.gather(*calls, return_exceptions=True)
    refilled = (time.monotonic() - began) * 50 / 60
    admitted = sum(isinstance(reply, dict) for reply in replies)
    assert 50 <= admitted <= 50 + refilled
    assert {type(reply) for reply in replies} == {dict, LimitReachedError}
    for client in clients:
        await client.aclose()


@pytest.mark.usefixtures("worker")
async def test_submitting_returns_what_is_left(submission) -> None:
    limits = Limits({"requests": 3, "tokens": 25})
    remaining = await submission.submit(limited_job("a", limits))
    left_tokens = 15  # 25 less 2 + 2 * 4
    assert remaining == {"requests": Allowance(3, 2), "tokens": Allowance(25, left_tokens)}
    assert remaining["requests"].seconds_to_full == 20
    await submission.submit(limited_job("b", limits))
    error = await refused(submission, limited_job("c", limits))
    assert error.limit == "tokens"
    assert 0 < error.retry_after <= 12.0  # five tokens are missing
    assert error.remaining["requests"] == Allowance(3, 1)  # a refusal takes nothing


@pytest.mark.usefixtures("worker")
async def test_operators_see_how_much_is_used(submission, valkey) -> None:
    limits = Limits({"requests": 3, "tokens": 25}, max_concurrency=4)
    jobs = [limited_job(name, limits) for name in "ab"]
    for job in jobs:
        await submission.submit(job)
    mine, other = jobs[0].api_key_id, jobs[0].api_key_id + 1
    with connect(valkey.url) as client:
        store = JobStore(client, PREFIX)
        used = read_limits_used(store, {mine: limits.rates, other: {"tokens": 5}})
    assert 0 < used[mine].rates["requests"] <= 2  # it refills
    assert 0 < used[mine].rates["tokens"] <= 20
    assert used[mine].concurrency == 2
    assert used[other] == LimitsUsed({"tokens": 0}, 0)


@pytest.mark.usefixtures("worker")
async def test_a_request_without_a_job_counts_once(submission) -> None:
    limits = Limits({"requests": 3, "tokens": 10}, max_concurrency=1)
    remaining = await submission.count_request(8, limits)
    assert remaining == {"requests": Allowance(3, 2), "tokens": Allowance(10, 10)}
    counted = limited_job("a", limits, is_counted=True)
    remaining = await submission.submit(counted)
    assert remaining == {"requests": Allowance(3, 2), "tokens": Allowance(10, 0)}
    for left in (1, 0):  # neither tokens nor places are missing
        remaining = await submission.count_request(8, limits)
        assert remaining == {"requests": Allowance(3, left), "tokens": Allowance(10, 0)}
    with pytest.raises(LimitReachedError) as caught:
        await submission.count_request(8, limits)
    assert caught.value.limit == "requests"
    assert 0 < caught.value.retry_after <= 20


@pytest.mark.usefixtures("worker")
async def test_a_counted_request_is_admitted_without_requests_left(submission) -> None:
    limits = Limits({"requests": 1})
    await submission.count_request(8, limits)
    await submission.submit(limited_job("a", limits, is_counted=True))


@pytest.mark.usefixtures("worker")
async def test_keys_do_not_share(submission) -> None:
    limits = Limits({"requests": 1}, max_concurrency=1)
    await submission.submit(limited_job("a", limits))
    await submission.submit(limited_job("b", limits, api_key_id=9))
    assert (await refused(submission, limited_job("c", limits))).limit == "requests"


async def test_tokens_that_were_not_used_come_back(submission, worker) -> None:
    limits = Limits({"tokens": 15})
    await submission.submit(limited_job("a", limits))
    assert (await refused(submission, limited_job("b", limits))).limit == "tokens"
    (claim,) = worker.claim(["a"])
    worker.publish([], [Ending("a", claim.attempt, 1, "completed", None, Usage(2, 3, 0))])
    remaining = await submission.submit(limited_job("b", limits))
    assert remaining["tokens"] == Allowance(15, 0)  # 15 - 5 - 10


async def test_a_cancelled_job_costs_no_tokens(submission, worker) -> None:
    limits = Limits({"tokens": 10})
    for name in ("a", "b", "c"):
        await submission.submit(limited_job(name, limits))
        await submission.cancel(name)


async def test_places_are_free_again_when_jobs_end(submission, worker, redis_client) -> None:
    limits = Limits(max_concurrency=2)
    for name in ("a", "b"):
        await submission.submit(limited_job(name, limits))
    assert (
        await refused(submission, limited_job("c", limits, kind="stream"))
    ).limit == "concurrency"
    later = limited_job("later", limits, kind="background")
    assert (await refused(submission, later)).limit == "concurrency"
    line = limited_job("line", limits, kind="batch")
    submit_durable(JobStore(redis_client, PREFIX), [line])
    await submission.cancel("a")
    await submission.submit(limited_job("c", limits, kind="stream"))


async def test_a_killed_web_process_frees_its_places(submission, worker, redis_client) -> None:
    limits = Limits(max_concurrency=1)
    await submission.submit(limited_job("a", limits))
    await submission.drop_lease()
    redis_client.zadd(f"{PREFIX}open", {"a": 0})
    reconcile(JobStore(redis_client, PREFIX))
    await submission.renew_lease()
    await submission.submit(limited_job("b", limits))


async def test_a_place_is_free_at_the_latest_after_the_deadline(submission, worker) -> None:
    limits = Limits(max_concurrency=1)
    await submission.submit(limited_job("a", limits, seconds=-100))
    await submission.submit(limited_job("b", limits))


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_wrong_clock_of_the_web_host_frees_no_place(
    submission, worker, monkeypatch, hours
) -> None:
    """Nor does it keep one."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    limits = Limits(max_concurrency=1)
    await submission.submit(limited_job("a", limits))
    assert (await refused(submission, limited_job("b", limits))).limit == "concurrency"
    await submission.cancel("a")
    await submission.submit(limited_job("late", limits, seconds=-100))
    await submission.submit(limited_job("b", limits))


@pytest.mark.usefixtures("worker")
async def test_a_limit_that_was_lifted_starts_full(submission) -> None:
    both = Limits({"requests": 1, "tokens": 100})
    await submission.submit(limited_job("a", both))
    await submission.submit(limited_job("b", Limits({"tokens": 100})))
    remaining = await submission.submit(limited_job("c", both))
    assert remaining["requests"] == Allowance(1, 0)


async def test_keys_without_limits_leave_nothing(submission, worker, redis_client) -> None:
    await submission.submit(limited_job("a", Limits()))
    assert not redis_client.keys(f"{PREFIX}limits:*")
    assert not redis_client.keys(f"{PREFIX}busy:*")


async def test_buckets_expire(submission, worker, redis_client) -> None:
    limits = Limits({"requests": 5}, max_concurrency=1)
    await submission.submit(limited_job("a", limits))
    assert 0 < redis_client.ttl(f"{PREFIX}limits:8") <= 300
    assert 0 < redis_client.ttl(f"{PREFIX}busy:8") <= 60 + 60 + 301
