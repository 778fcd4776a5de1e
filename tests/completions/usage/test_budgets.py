"""What was spent comes back from SQL after Redis was emptied, to the token."""

from datetime import timedelta

import pytest
from django.utils import timezone

from completions.contract.job_request import JobRequest
from completions.contract.usage import Usage
from completions.jobs.execute import Ending, Execution
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import submit_durable
from completions.maintenance import settlement
from completions.models import UsageHour
from completions.usage import budgets

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

PREFIX = "b:"
PRICES = (1.0, 1.0, 10.0)


def run_job(client, tenant, job_id):
    """It uses 3 + 5 tokens, for 53."""
    owner = tenant.organization.pk, tenant.key.pk
    job = NewJob(job_id, "sync", "m", *owner, JobRequest(), b"", 60, 60, prices=PRICES)
    submit_durable(JobStore(client, PREFIX), [job])
    worker = Execution(JobStore(client, PREFIX), "w")
    worker.beat("m", {})
    (claim,) = worker.claim([job_id])
    ending = Ending(job_id, claim.attempt, 1, "completed", None, Usage(3, 5, 1))
    worker.publish([], [ending])


def seeded(client, scope):
    budgets.seed_store(JobStore(client, PREFIX), scope)
    fields = ("day_tokens", "month_tokens", "day_cost", "month_cost")
    return [int(client.hget(f"{PREFIX}spent:{scope}", field)) for field in fields]


def test_settled_and_unsettled_jobs_count_once(owner, stranger, redis_client) -> None:
    run_job(redis_client, owner, "a")
    settlement.settle(JobStore(redis_client, PREFIX))
    run_job(redis_client, owner, "b")
    run_job(redis_client, stranger, "c")
    for scope in (f"k{owner.key.pk}", f"o{owner.organization.pk}"):
        assert seeded(redis_client, scope) == [16, 16, 106, 106]


def test_an_emptied_redis_gets_the_sums_again(owner, redis_client) -> None:
    run_job(redis_client, owner, "a")
    settlement.settle(JobStore(redis_client, PREFIX))
    redis_client.flushall()
    assert seeded(redis_client, f"k{owner.key.pk}") == [8, 8, 53, 53]


def test_spending_of_earlier_periods_does_not_count(owner, redis_client) -> None:
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    common = {"organization": owner.organization, "api_key": owner.key, "model": "m"}
    for hour, tokens in (
        (today.replace(day=1) - timedelta(hours=1), 1000),
        (today.replace(day=1), 200),
        (today, 30),
    ):
        row, _ = UsageHour.objects.get_or_create(hour=hour, adapter="", **common)
        row.prompt_tokens += tokens
        row.save()
    day, month = (30, 230) if today.day > 1 else (230, 230)
    assert seeded(redis_client, f"k{owner.key.pk}") == [day, month, 0, 0]


def test_a_job_that_ends_meanwhile_is_not_forgotten(owner, redis_client, monkeypatch) -> None:
    reads, read = [], budgets.read_unsettled

    def and_another_ends(store):
        found = read(store)
        if not reads:
            run_job(redis_client, owner, "late")
        reads.append(found)
        return found

    monkeypatch.setattr(budgets, "read_unsettled", and_another_ends)
    assert seeded(redis_client, f"k{owner.key.pk}") == [8, 8, 53, 53]
    assert len(reads) == 2
