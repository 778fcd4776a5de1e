"""Budgets of keys and organizations, against a real server: held, spent, kept over midnight."""

import asyncio
import time
from datetime import UTC, datetime

import pytest

from completions.contract.usage import Usage
from completions.jobs.connection import connect_async
from completions.jobs.execute import Ending, Execution
from completions.jobs.limits import (
    Bounds,
    Budget,
    BudgetReachedError,
    Limits,
    QueueFullError,
    UnseededError,
)
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import Submission, submit_durable
from tests.completions.jobs.job_making import PREFIX, limited_job

pytestmark = pytest.mark.integration

NOTHING = (0, 0, 0, 0)
PRICES = (500.0, 100.0, 2000.0)


def new_job(job_id: str, limits: Limits, kind: str = "sync", **changes) -> NewJob:
    """It can use 2 + 8 tokens, which cost 17,000 billionths."""
    return limited_job(job_id, limits, kind, **{"prices": PRICES, **changes})


def limits(**budget: int) -> Limits:
    return Limits(budget=Budget(**budget))


def of_organization(**budget: int) -> Limits:
    return Limits(organization_budget=Budget(**budget))


def periods(at: float | None = None) -> tuple[int, int]:
    now = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return int(now.timestamp() // 86400), (now.year - 1970) * 12 + now.month - 1


def seed(client, scope: str, sums=NOTHING, last="0-0", when=None) -> int:
    return JobStore(client, PREFIX).call("seed", scope, last, *(when or periods()), *sums)


def spent(client, scope: str) -> dict[str, int]:
    raw = client.hgetall(f"{PREFIX}spent:{scope}")
    return {name.decode(): int(value) for name, value in raw.items()}


def run(worker: Execution, job_id: str, used: Usage) -> None:
    (claim,) = worker.claim([job_id])
    worker.publish([], [Ending(job_id, claim.attempt, 1, "completed", None, used)])


async def refused(submission: Submission, job: NewJob) -> BudgetReachedError:
    with pytest.raises(BudgetReachedError) as caught:
        await submission.submit(job)
    return caught.value


@pytest.mark.usefixtures("worker")
async def test_a_budget_must_be_seeded(submission, redis_client) -> None:
    cases = ((limits(daily_tokens=10), "k8"), (of_organization(monthly_cost=9**9), "o7"))
    for job_limits, scope in cases:
        with pytest.raises(UnseededError) as caught:
            await submission.submit(new_job("a", job_limits))
        assert caught.value.scope == scope
        assert not redis_client.exists(f"{PREFIX}job:a")
        assert seed(redis_client, scope)
    await submission.submit(new_job("a", limits(daily_tokens=10)))


async def test_the_most_is_held_and_what_was_used_is_spent(
    submission, worker, redis_client
) -> None:
    seed(redis_client, "k8", (5, 6, 0, 0))
    budget = limits(daily_tokens=24)
    await submission.submit(new_job("a", budget))
    error = await refused(submission, new_job("b", budget))
    assert (error.name, error.used, error.of_organization) == ("daily_tokens", 15, False)
    run(worker, "a", Usage(2, 3, 1))
    state = spent(redis_client, "k8")
    assert (state["day_tokens"], state["month_tokens"], state["held_tokens"]) == (10, 11, 0)
    # one prompt token at its price, one from the cache, three of the completion
    assert state["day_cost"] == state["month_cost"] == 500 + 100 + 3 * 2000
    await submission.submit(new_job("b", budget))


@pytest.mark.parametrize(
    ("job_limits", "name", "of_whom"),
    [
        (limits(monthly_tokens=9), "monthly_tokens", False),
        (limits(daily_cost=16_999), "daily_cost", False),
        (limits(monthly_cost=16_999), "monthly_cost", False),
        (of_organization(daily_tokens=9), "daily_tokens", True),
        (limits(daily_tokens=0), "daily_tokens", False),
    ],
)
@pytest.mark.usefixtures("worker")
async def test_every_budget_counts(submission, redis_client, job_limits, name, of_whom) -> None:
    seed(redis_client, "k8")
    seed(redis_client, "o7")
    error = await refused(submission, new_job("a", job_limits))
    assert (error.name, error.of_organization, error.used) == (name, of_whom, 0)
    assert spent(redis_client, "k8")["held_tokens"] == 0


@pytest.mark.usefixtures("worker")
async def test_a_refusal_takes_nothing_of_the_rates(submission, redis_client) -> None:
    seed(redis_client, "k8")
    poor = Limits({"requests": 1}, budget=Budget(daily_tokens=9))
    rich = Limits({"requests": 1}, budget=Budget(daily_tokens=10))
    await refused(submission, new_job("a", poor))
    remaining = await submission.submit(new_job("b", rich))
    assert remaining["requests"].remaining == 0


async def test_cancelled_jobs_hold_nothing(submission, worker, redis_client) -> None:
    seed(redis_client, "k8")
    for name in ("a", "b", "c"):
        await submission.submit(new_job(name, limits(daily_tokens=10)))
        await submission.cancel(name)
    assert spent(redis_client, "k8")["day_tokens"] == 0


async def test_no_more_than_the_budget_from_two_processes(valkey, worker, redis_client) -> None:
    seed(redis_client, "o7")
    clients = [connect_async(valkey.url) for _ in range(2)]
    processes = [
        Submission(JobStore(client, PREFIX), f"web-{i}") for i, client in enumerate(clients)
    ]
    shared = of_organization(daily_tokens=505)
    calls = [
        processes[i % 2].submit(new_job(f"j{i}", shared, api_key_id=i % 3)) for i in range(200)
    ]
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(reply, dict) for reply in replies) == 50
    for client in clients:
        await client.aclose()


async def test_yesterday_and_last_month_are_over(submission, worker, redis_client) -> None:
    day, month = periods()
    seed(redis_client, "k8")
    key = f"{PREFIX}spent:k8"
    past = {"day": day - 1, "month": month - 1, "day_tokens": 50, "month_tokens": 60}
    redis_client.hset(key, mapping=past)
    await submission.submit(new_job("a", limits(daily_tokens=10, monthly_tokens=10)))
    redis_client.hset(key, mapping=past)
    run(worker, "a", Usage(2, 3))
    state = spent(redis_client, "k8")
    assert (state["day"], state["month"]) == (day, month)
    assert (state["day_tokens"], state["month_tokens"], state["held_tokens"]) == (5, 5, 0)


async def test_what_ran_before_a_budget_was_set_is_spent_once_it_ends(
    submission, worker, redis_client
) -> None:
    await submission.submit(new_job("a", Limits()))
    seed(redis_client, "k8")
    run(worker, "a", Usage(2, 3))
    state = spent(redis_client, "k8")
    assert (state["day_tokens"], state["held_tokens"]) == (5, 0)


async def test_a_seed_counts_only_what_it_saw(submission, worker, redis_client) -> None:
    await submission.submit(new_job("a", Limits()))
    run(worker, "a", Usage(2, 3))
    assert not seed(redis_client, "k8")  # a job has ended since
    (last,) = [entry for entry, _ in redis_client.xrange(f"{PREFIX}usage")]
    redis_client.xdel(f"{PREFIX}usage", last)  # settled: it is still the last that there was
    day, month = periods()
    assert not seed(redis_client, "k8", last=last, when=(day - 1, month))
    assert seed(redis_client, "k8", (5, 5, 0, 0), last=last)
    assert seed(redis_client, "k8", (9, 9, 9, 9), last=last)  # a second time it stays as it is
    assert spent(redis_client, "k8")["day_tokens"] == 5


@pytest.mark.usefixtures("worker")
async def test_lines_of_batches_spend_but_have_no_rate(redis_client) -> None:
    seed(redis_client, "k8")
    both = Limits({"requests": 1}, budget=Budget(daily_tokens=20))
    jobs = [new_job(f"l{i}", both, kind="batch") for i in range(3)]
    first, second, third = submit_durable(JobStore(redis_client, PREFIX), jobs)
    assert (first, second) == (True, True)
    assert isinstance(third, BudgetReachedError)


@pytest.mark.usefixtures("worker")
async def test_one_class_leaves_room_for_the_other(submission, redis_client) -> None:
    await submission.submit(new_job("a", Limits()), Bounds(jobs_of_class=1))
    with pytest.raises(QueueFullError):
        await submission.submit(new_job("b", Limits(), kind="stream"), Bounds(jobs_of_class=1))
    await submission.submit(new_job("c", Limits(), kind="background"), Bounds(jobs_of_class=1))
    await submission.cancel("a")
    await submission.submit(new_job("b", Limits(), kind="stream"), Bounds(jobs_of_class=1))
    assert redis_client.smembers(f"{PREFIX}depth:interactive") == {b"b"}
