"""Background jobs outlive Redis."""

import time
from dataclasses import replace
from datetime import timedelta

import orjson
import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from completions.contract.job_request import JobRequest, decode_job_request
from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs import durable
from completions.jobs.ended import read_ended
from completions.jobs.execute import Ending, Execution
from completions.jobs.new_job import NewJob
from completions.jobs.sharding.shards import Shards
from completions.jobs.store import JobStore
from completions.maintenance.reconcile import reconcile
from completions.models import ApiKey, Job, Organization

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

PREFIX = "b:"
REQUEST = JobRequest(((1,),), SamplingParams(logit_bias={5: 1.0}))


def new_job(tenant, job_id) -> NewJob:
    context = orjson.dumps({"id": job_id, "n": 1})
    return NewJob(
        job_id,
        "background",
        "m",
        tenant.organization.pk,
        tenant.key.pk,
        REQUEST,
        context,
        60.0,
        60,
    )


def test_a_restored_job_is_the_same_to_the_operator(owner, redis_client):
    """Its lines in the log bear the client's id, and its prompt is kept where prompts are."""
    Organization.objects.update(store_prompts=True)
    made = replace(new_job(owner, "traced"), request_id="req_1", prices=(1, 1, 2))
    async_to_sync(durable.store)(made)
    durable.resubmit_lost(Shards.make_single(JobStore(redis_client, PREFIX)), later())
    worker = Execution(JobStore(redis_client, PREFIX), "w")
    (claim,) = worker.claim(["traced"])
    assert claim.request_id == "req_1"
    worker.publish([], [Ending("traced", claim.attempt, 1, "completed", None, Usage(1, 2))])
    (ended,), _ = read_ended(JobStore(redis_client, PREFIX), 1)
    assert (ended.request_id, ended.cost) == ("req_1", 5)
    assert decode_job_request(ended.request) == REQUEST


def later():
    return timezone.now() + timedelta(minutes=1)


def test_an_emptied_redis_gets_its_jobs_back(owner, redis_client):
    for number in range(3):
        async_to_sync(durable.store)(new_job(owner, f"job-{number}"))
    store = JobStore(redis_client, PREFIX)
    assert durable.resubmit_lost(Shards.make_single(store), timezone.now()) == 0  # still on the way
    assert durable.resubmit_lost(Shards.make_single(store), later()) == 3
    assert durable.resubmit_lost(Shards.make_single(store), later()) == 0
    assert {lost.job_id for lost in reconcile(store)} == {"job-0", "job-1", "job-2"}
    worker = Execution(store, "w")
    (claim,) = worker.claim(["job-1"])
    assert decode_job_request(claim.request) == REQUEST
    assert claim.seconds_left > 50


def test_a_restored_job_takes_its_place(owner, redis_client):
    ApiKey.objects.update(max_concurrency=1, requests_per_minute=5)
    store, busy = JobStore(redis_client, PREFIX), f"{PREFIX}busy:{owner.key.pk}"
    bucket = f"{PREFIX}limits:{owner.key.pk}"
    redis_client.hset(bucket, mapping={"requests": 3, "at": time.time()})
    for job_id in ("first", "second"):
        async_to_sync(durable.store)(new_job(owner, job_id))
    assert durable.resubmit_lost(Shards.make_single(store), later()) == 2
    assert set(redis_client.zrange(busy, 0, -1)) == {b"first", b"second"}
    assert redis_client.ttl(busy) > 60
    assert redis_client.hget(bucket, "requests") == b"3"
    worker = Execution(store, "w")
    (claim,) = worker.claim(["first"])
    worker.publish([], [Ending("first", claim.attempt, 1, "completed", None, Usage(1, 2))])
    assert redis_client.zrange(busy, 0, -1) == [b"second"]


def test_ended_jobs_stay_ended(owner, redis_client):
    async_to_sync(durable.store)(new_job(owner, "done"))
    Job.objects.update(status="completed")
    assert durable.resubmit_lost(Shards.make_single(JobStore(redis_client, PREFIX)), later()) == 0


def test_a_lost_job_is_still_found_as_queued(owner):
    async_to_sync(durable.store)(new_job(owner, "lost"))
    record = async_to_sync(durable.find)("lost", timezone.now())
    assert (record.state, record.organization_id) == ("queued", owner.organization.pk)
    async_to_sync(durable.discard)("lost")
    assert async_to_sync(durable.find)("lost", timezone.now()) is None
