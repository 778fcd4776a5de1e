"""Jobs over HTTP with a real Redis: repeated, polled, listed, deleted, expired in Redis."""

import asyncio
import gc
import json

import pytest
from redis.exceptions import RedisError

from completions.delivery import enqueueing, idempotency
from completions.http.base import LARGE_BODY
from completions.jobs import durable
from completions.jobs.limits import QueueFullError
from completions.jobs.rids import Rids
from completions.models import Job, UsageRecord
from tests.completions.live_api import PATH, Caller

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


async def body_of(response):
    if response.streaming:
        return b"".join([part async for part in response.streaming_content])
    return json.loads(response.content)


def code(response, status):
    assert response.status_code == status, response.content
    return json.loads(response.content)["error"]["code"]


async def test_keywords_without_effect_are_named_in_a_header(live):
    schema = {"properties": {"ä/b": {"type": "string", "format": "colour"}}, "x-order": 1}
    answer = await live.post(json_schema=schema, user="me")
    assert answer.status_code == 200, answer.content
    assert answer.headers["x-ignored-params"].split(", ") == [
        "user",
        "json_schema#/x-order",
        "json_schema#/properties/%C3%A4~1b/format",
    ]
    many = {f"x-{index}": 1 for index in range(20)}
    named = (await live.post(json_schema=many)).headers["x-ignored-params"].split(", ")
    assert (len(named), named[-1]) == (17, "...")
    long = {f"x-{index}{'ä' * 5000}": 1 for index in range(16)}
    assert len((await live.post(json_schema=long)).headers["x-ignored-params"]) < 4096


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


@pytest.mark.parametrize(
    ("failed", "status", "retry"),
    [
        ("processor_error", 500, "false"),
        ("invalid_logits", 500, "false"),
        ("internal_error", 500, None),
        ("worker_error", 500, None),
        ("generation_timeout", 504, "false"),
        ("queue_timeout", 504, "true"),
    ],
)
async def test_a_failed_job_says_whether_to_send_it_again(live, failed, status, retry):
    live.at_once = False
    call = asyncio.create_task(live.post())
    async with asyncio.timeout(60):
        await live.dispatched.wait()
    await asyncio.to_thread(live.worker.run, live.sent[0], "failed", failed)
    refused = await call
    assert code(refused, status) == failed
    assert refused.headers.get("x-should-retry") == retry
    error = refused.json()["error"]
    assert error["type"] == "server_error"
    assert (error["message"] == "because") == (failed == "processor_error")
    assert len(live.sent) == 1


async def end_at_deadline(live, **body):
    """The reply to a request of two tokens that reaches its deadline after them."""
    live.dispatched.clear()
    live.at_once = False
    call = asyncio.create_task(live.post(headers={"x-include-meta": "1"}, **body))
    async with asyncio.timeout(60):
        await live.dispatched.wait()
    if streams := body.get("stream"):
        reply = await call
    await asyncio.to_thread(live.worker.run, live.sent[-1], "failed", "generation_timeout")
    return reply if streams else await call


async def test_a_deadline_keeps_the_text_of_a_request_without_max_tokens(live):
    reply = await body_of(await end_at_deadline(live, max_tokens=None))
    (choice,) = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("AB", "length")
    assert reply["usage"]["completion_tokens"] == 2
    assert reply["meta"]["warnings"] == ["max_tokens_default"]
    streamed = (await body_of(await end_at_deadline(live, max_tokens=None, stream=True))).decode()
    *frames, last = [line.removeprefix("data: ") for line in streamed.split("\n") if line]
    assert last == "[DONE]"
    *_, end, meta = map(json.loads, frames)
    assert end["choices"][0]["finish_reason"] == "length"
    assert meta["meta"]["warnings"] == ["max_tokens_default"]


async def test_a_deadline_before_max_tokens_is_an_error(live):
    assert code(await end_at_deadline(live), 504) == "generation_timeout"
    streamed = await body_of(await end_at_deadline(live, stream=True))
    assert b'"code":"generation_timeout"' in streamed


@pytest.mark.parametrize("key", ["x" * 256])
async def test_a_key_has_a_length(live, key):
    assert code(await live.post(key=key), 400) == "invalid_value"


async def test_a_key_that_fills_the_queue_leaves_room_for_others(live, stranger, settings):
    settings.MAX_QUEUED_PER_KEY = 1
    live.at_once = False
    assert (await live.post(background=True)).status_code == 202
    refused = await live.post(background=True)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (
        429,
        "overloaded_error",
        "queue_full",
    )
    assert int(refused.headers["Retry-After"]) >= 1
    live.http = Caller(stranger)
    assert (await live.post(background=True)).status_code == 202


async def test_no_answered_body_waits_for_the_garbage_collector(live, settings):
    """A body of megabytes is few objects, so the collector would find it late."""
    settings.MAX_QUEUED_BYTES_PER_KEY = 1500
    length = 17  # of no other list
    statuses = []
    gc.collect()
    gc.disable()
    try:
        for body in ({}, {"temperature": -1}):
            reply = await live.post(prompt=[[65] * length for _ in range(3)], **body)
            statuses.append(reply.status_code)
        live.at_once = False
        for _ in range(2):
            reply = await live.post(prompt=[[65] * length] * 30, background=True)
            statuses.append(reply.status_code)
        del reply
        assert [o for o in gc.get_objects() if type(o) is list and o == [65] * length] == []
    finally:
        gc.enable()
    assert statuses == [200, 400, 202, 429]


async def test_a_key_that_fills_the_queue_with_bytes_leaves_room_for_others(
    live, stranger, settings
):
    settings.MAX_QUEUED_BYTES_PER_KEY = 1000
    live.at_once = False
    assert (await live.post(background=True, prompt=[65] * 100)).status_code == 202
    refused = await live.post(background=True, prompt=[65] * 100)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (
        429,
        "overloaded_error",
        "queue_full",
    )
    assert "this API key hold" in error["message"]
    assert "at most 1000 may" in error["message"]
    assert int(refused.headers["Retry-After"]) >= 1
    live.http = Caller(stranger)
    assert (await live.post(background=True, prompt=[65] * 100)).status_code == 202


async def test_a_queue_full_of_bytes_refuses_all(live, stranger, settings):
    settings.MAX_QUEUED_BYTES = 1500
    live.at_once = False
    assert (await live.post(background=True, prompt=[65] * 100)).status_code == 202
    live.http = Caller(stranger)
    refused = await live.post(background=True, prompt=[65] * 100)
    assert code(refused, 503) == "server_overloaded"
    assert int(refused.headers["Retry-After"]) >= 1


async def test_a_poll_with_the_current_etag_gets_304(live):
    live.at_once = False
    location = (await live.post(background=True)).headers["Location"]
    first = await live.http.get(location)
    etag = first.headers["ETag"]
    same = await live.http.get(location, headers={"If-None-Match": etag})
    assert (same.status_code, same.content) == (304, b"")
    await asyncio.to_thread(live.worker.run, live.sent[0])
    changed = await live.http.get(location, headers={"If-None-Match": etag})
    assert changed.status_code == 200
    done = changed.headers["ETag"]
    await asyncio.to_thread(live.settle)
    live.redis.flushall()
    from_sql = await live.http.get(location)
    assert from_sql.content == changed.content
    assert from_sql.headers["ETag"] == done  # the same, wherever it lies
    text = f"{location}?stream=true&starting_after=0"
    assert b"[DONE]" in await body_of(await live.http.get(text))


async def test_kept_jobs_are_listed(live, stranger):
    live.at_once = False
    for _ in range(3):
        await live.post(background=True)
    await asyncio.to_thread(live.worker.run, live.sent[0])
    live.worker.claim(live.sent[1])
    page = await body_of(await live.http.get(f"{PATH}?limit=2"))
    rest = await body_of(await live.http.get(f"{PATH}?limit=2&after={page['last_id']}"))
    listed = page["data"] + rest["data"]
    assert [(body["id"], body["status"]) for body in listed] == [
        (live.sent[2], "queued"),
        (live.sent[1], "in_progress"),
        (live.sent[0], "completed"),
    ]
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert all("choices" not in body for body in listed)
    await asyncio.to_thread(live.settle)
    settled = (await body_of(await live.http.get(PATH)))["data"][-1]
    assert (settled["status"], settled["usage"]["total_tokens"]) == ("completed", 3)
    assert len((await body_of(await live.http.get(f"{PATH}?model=tiny")))["data"]) == 3
    assert (await body_of(await live.http.get(f"{PATH}?model=texts")))["data"] == []
    other = Caller(stranger)
    assert (await body_of(await other.get(PATH)))["data"] == []


async def test_a_list_goes_on_after_a_job_that_was_deleted(live):
    live.at_once = False
    for _ in range(3):
        await live.post(background=True)
    for job_id in live.sent:
        await asyncio.to_thread(live.worker.run, job_id)
    seen, query = [], "limit=1"
    for _ in range(3):
        (job,) = (await body_of(await live.http.get(f"{PATH}?{query}")))["data"]
        assert (await live.http.delete(f"{PATH}/{job['id']}")).status_code == 200
        seen.append(job["id"])
        query = f"limit=1&after={job['id']}"
    assert seen == live.sent[::-1]
    assert (await body_of(await live.http.get(f"{PATH}?{query}")))["data"] == []


async def test_an_ended_job_can_be_deleted(live, stranger):
    live.at_once = False
    location = (await live.post(background=True)).headers["Location"]
    assert code(await live.http.delete(location), 409) == "completion_in_progress"
    await asyncio.to_thread(live.worker.run, live.sent[0])
    other = Caller(stranger)
    assert code(await other.delete(location), 404) == "completion_not_found"
    gone = await body_of(await live.http.delete(location))
    assert gone == {"id": live.sent[0], "object": "text_completion", "deleted": True}
    assert code(await live.http.get(location), 404) == "completion_not_found"
    await asyncio.to_thread(live.settle)  # its usage stays
    assert await UsageRecord.objects.acount() == 1
    assert code(await live.http.get(location), 404) == "completion_not_found"


async def test_jobs_kept_in_sql_must_not_contain_nul(live):
    refused = await live.post(background=True, stop="\0")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    assert (await live.post(background=True, stop="\\u0000")).status_code == 202
