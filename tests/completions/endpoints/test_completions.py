"""Jobs over HTTP with a real Redis: failed, polled, listed, deleted, refused by a full queue."""

import asyncio
import gc
import json

import pytest

from completions.models import UsageRecord
from tests.completions.endpoints.calling import body_of, code
from tests.completions.live_api import PATH, Caller

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


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
