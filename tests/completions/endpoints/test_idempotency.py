"""Requests that are sent again, with a key or an id, over HTTP with a real Redis."""

import asyncio
import json

import pytest
from redis.exceptions import RedisError

from completions.delivery import enqueueing, idempotency
from completions.http.base import LARGE_BODY
from completions.jobs import durable
from completions.jobs.limits import QueueFullError
from completions.jobs.rids import Rids
from completions.models import Job, UsageRecord
from tests.completions.endpoints.calling import body_of, code
from tests.completions.live_api import PATH, Caller

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


async def test_a_request_sent_again_is_answered_again_and_runs_once(live):
    first = await live.post(key="k1")
    again = await live.post(key="k1")
    assert first.status_code == again.status_code == 200
    assert await body_of(again) == await body_of(first)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(live.sent) == 1
    await asyncio.to_thread(live.settle)
    live.redis.flushall()  # a day later, Redis has long forgotten it
    assert await body_of(await live.post(key="k1")) == await body_of(first)
    assert await UsageRecord.objects.acount() == 1


async def test_what_is_answered_again_has_the_headers_of_the_request(live):
    later = {"key": "b", "headers": {"Prefer": "respond-async", "x-include-meta": "1"}}
    for options in ({"key": "c"}, {"key": "s", "stream": True}, later):
        answers = [await live.post(user="me", **options) for _ in range(2)]
        for name in ("x-ignored-params", "Location", "Preference-Applied"):
            values = [answer.headers.get(name) for answer in answers]
            assert values[0] == values[1], (options, name)
        assert answers[1].headers["Idempotent-Replayed"] == "true"
        assert answers[1].headers["x-ignored-params"] == "user"
    assert "meta" in await body_of(answers[1])
    with_meta = await live.post(key="c", user="me", headers={"x-include-meta": "1"})
    assert "meta" in await body_of(with_meta)
    with_ids = await live.post(f"{PATH}?sse_ids=1", key="s", user="me", stream=True)
    assert (await body_of(with_ids)).startswith(b"id: ")
    assert len(live.sent) == 3


async def test_a_body_that_is_nested_too_deeply_is_refused_with_a_key_too(live):
    body = '{"metadata":' + '{"a":' * 978 + "1" + "}" * 979 + " " * LARGE_BODY
    answer = await live.http.post(
        PATH, body, content_type="application/json", headers={"Idempotency-Key": "d"}
    )
    assert code(answer, 400) == "invalid_json"


async def test_one_key_for_two_requests_is_refused(live):
    await live.post(key="k1")
    assert code(await live.post(key="k1", max_tokens=3), 422) == "idempotency_key_reused"
    assert (await live.post(key="k2", max_tokens=3)).status_code == 200
    # The order of the fields does not make another request of it.
    turned = {"max_tokens": 2, "prompt": [65], "model": "tiny"}
    again = await live.http.post(
        PATH,
        json.dumps(turned),
        content_type="application/json",
        headers={"Idempotency-Key": "k1"},
    )
    assert again.headers["Idempotent-Replayed"] == "true"


async def test_keys_of_others_are_others(live, stranger):
    await live.post(key="k1")
    live.http = Caller(stranger)
    other = await live.post(key="k1")
    assert other.status_code == 200
    assert "Idempotent-Replayed" not in other.headers


async def test_a_request_that_still_runs_is_not_run_again(live):
    live.at_once = False
    first = asyncio.create_task(live.post(key="k1"))
    async with asyncio.timeout(60):
        await live.dispatched.wait()
    refused = await live.post(key="k1")
    assert code(refused, 409) == "idempotency_in_progress"
    assert refused.headers["Retry-After"] == "1"
    await asyncio.to_thread(live.worker.run, live.sent[0])
    assert (await first).status_code == 200
    assert (await live.post(key="k1")).headers["Idempotent-Replayed"] == "true"


async def test_a_request_with_a_key_outlives_its_connection(live):
    live.at_once = False
    first = asyncio.create_task(live.post(key="k1"))
    async with asyncio.timeout(60):
        await live.dispatched.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0.1)
    assert await asyncio.to_thread(live.worker.run, live.sent[0])  # nobody cancelled it
    again = await live.post(key="k1")
    assert (await body_of(again))["choices"][0]["text"] == "AB"


@pytest.mark.parametrize("fields", [{}, {"rid": "mine"}], ids=["without", "with an id"])
async def test_two_at_once_run_once(live, fields):
    answers = await asyncio.gather(*(live.post(key="k1", **fields) for _ in range(5)))
    assert sorted({answer.status_code for answer in answers}) in ([200], [200, 409])
    assert await Job.objects.acount() == 1
    assert len(live.sent) == 1


async def test_streams_and_background_jobs_are_sent_again(live):
    first = await body_of(await live.post(key="s", stream=True))
    again = await live.post(key="s", stream=True)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert await body_of(again) == first
    live.at_once = False
    queued = await live.post(key="b", background=True)
    assert queued.status_code == 202
    again = await live.post(key="b", background=True)
    assert (again.status_code, (await body_of(again))["status"]) == (202, "queued")
    await asyncio.to_thread(live.worker.run, live.sent[-1])
    again = await live.post(key="b", background=True)
    assert (again.status_code, (await body_of(again))["status"]) == (200, "completed")
    assert len(live.sent) == 2


@pytest.mark.parametrize("form", ["background", "stream"])
async def test_nothing_is_accepted_before_the_first_request_is(live, monkeypatch, form):
    """The first one may still be refused, and its job is withdrawn."""
    admitting, decided = asyncio.Event(), asyncio.Event()

    async def full(here, job):
        admitting.set()
        await decided.wait()
        raise QueueFullError

    with monkeypatch.context() as patch:
        patch.setattr(enqueueing, "_admit", full)
        first = asyncio.create_task(live.post(key="k", **{form: True}))
        async with asyncio.timeout(60):
            await admitting.wait()
        again = await live.post(key="k", **{form: True})
        assert code(again, 409) == "idempotency_in_progress"
        decided.set()
        assert code(await first, 503) == "server_overloaded"
    async with asyncio.timeout(60):
        while await Job.objects.aexists():  # noqa: ASYNC110 - the database sends no events
            await asyncio.sleep(0.01)
    assert "Idempotent-Replayed" not in (await live.post(key="k", **{form: True})).headers


async def test_a_request_that_is_withdrawn_while_it_is_repeated(live, monkeypatch):
    async def first_job(key, api_key_id):
        return "cmpl-withdrawn"  # found a moment before it was deleted

    monkeypatch.setattr(idempotency, "find_first_job", first_job)
    assert code(await live.post(key="k"), 409) == "idempotency_in_progress"


async def test_an_id_of_another_request_leaves_no_job(live):
    await live.post(rid="mine")
    refused = await live.post(key="k", rid="mine")
    assert (code(refused, 400), refused.json()["error"]["param"]) == ("invalid_value", "rid")
    async with asyncio.timeout(60):  # it is withdrawn after the answer
        while await Job.objects.aexists():  # noqa: ASYNC110 - the database sends no events
            await asyncio.sleep(0.01)
    assert (await live.post(key="k")).status_code == 200


async def test_a_refused_request_frees_its_id_before_its_key(live, monkeypatch):
    discard = durable.discard
    again = asyncio.get_running_loop().create_future()

    async def full(here, job):
        raise QueueFullError

    async def discard_and_repeat(job_id, turn):
        patch.undo()
        await discard(job_id, turn)
        again.set_result(await live.post(key="k", rid="mine"))

    with monkeypatch.context() as patch:
        patch.setattr(enqueueing, "_admit", full)
        patch.setattr(durable, "discard", discard_and_repeat)
        assert code(await live.post(key="k", rid="mine"), 503) == "server_overloaded"
        async with asyncio.timeout(60):
            answer = await again
    assert answer.status_code == 200, answer.content


async def test_a_refused_request_frees_its_id_once_redis_answers(live, monkeypatch):
    free, tried, freed = Rids.free, asyncio.Event(), asyncio.Event()

    async def full(here, job):
        raise QueueFullError

    async def free_at_second(rids, *args):
        if not tried.is_set():
            tried.set()
            raise RedisError
        await free(rids, *args)
        freed.set()

    with monkeypatch.context() as patch:
        patch.setattr(enqueueing, "_admit", full)
        patch.setattr(Rids, "free", free_at_second)
        assert code(await live.post(key="k", rid="mine"), 503) == "server_overloaded"
        async with asyncio.timeout(60):
            await freed.wait()
    assert (await live.post(rid="mine")).status_code == 200


async def test_a_failure_is_repeated_and_a_refusal_is_not(live):
    live.at_once = False
    first = asyncio.create_task(live.post(key="f"))
    async with asyncio.timeout(60):
        await live.dispatched.wait()
    await asyncio.to_thread(live.worker.run, live.sent[0], "failed", "grammar_error")
    assert code(await first, 400) == "grammar_error"
    again = await live.post(key="f")
    assert code(again, 400) == "grammar_error"
    assert again.headers["Idempotent-Replayed"] == "true"
    live.at_once = True
    assert code(await live.post(key="r", max_tokens=0), 400) == "integer_below_min_value"
    assert (await live.post(key="r")).status_code == 200


@pytest.mark.parametrize("key", ["x" * 256])
async def test_a_key_has_a_length(live, key):
    assert code(await live.post(key=key), 400) == "invalid_value"
