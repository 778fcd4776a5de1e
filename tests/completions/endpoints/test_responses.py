"""The Responses API over HTTP with a real Redis: stored, continued, streamed again, deleted."""

import asyncio
import json
from collections.abc import Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.utils import timezone

from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from completions.contract.job_request import decode_job_request
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import Ending, StepEvent
from completions.maintenance import pruning
from completions.models import Conversation, Job, StoredResponse, UsageRecord
from completions.responses import response_object
from tests.completions.endpoints.responding import (
    PATH,
    code,
    create,
    events,
    get,
    post,
    prompt_of,
    read,
    run,
    text_of,
)
from tests.completions.live_api import Caller, Live

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


async def test_a_response_is_stored_and_retrieved(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_object, "time", SimpleNamespace(time=lambda: 1.0))
    made = await create(live, metadata={"a": "b"}, instructions="Be kind.")
    assert (made["object"], made["status"], text_of(made)) == ("response", "incomplete", "AB")
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (made["metadata"], made["store"], made["background"]) == ({"a": "b"}, True, False)
    assert made["usage"]["input_tokens_details"]["cached_tokens"] == 1
    path = f"{PATH}/{made['id']}"
    for _ in range(2):
        again = await get(live, path)
        assert again == made
        await asyncio.to_thread(live.settle)
        live.redis.flushall()
    listed = await get(live, f"{path}/input_items")
    (item,) = listed["data"]
    assert item["content"] == [{"type": "input_text", "text": "Hi"}]
    assert listed["first_id"] == listed["last_id"] == item["id"]
    assert await UsageRecord.objects.acount() == 1


async def test_one_that_is_not_stored_leaves_nothing(live: Live) -> None:
    made = await create(live, store=False)
    assert made["store"] is False
    assert not await Job.objects.aexists()
    for suffix in ("", "/input_items"):
        answer = await live.http.get(f"{PATH}/{made['id']}{suffix}")
        assert code(answer, 404) == ("response_not_found", "id")
    answer = await post(live, f"{PATH}/{made['id']}/cancel")
    assert code(answer, 404) == ("response_not_found", "id")
    refused = await post(live, previous_response_id=made["id"])
    assert code(refused, 400) == ("previous_response_not_found", "previous_response_id")
    assert code(await post(live, store=False, background=True), 400) == (
        "invalid_value",
        "background",
    )


async def test_a_stream_is_numbered_and_can_be_read_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_object, "time", SimpleNamespace(time=lambda: 1.0))
    first = events(await read(await post(live, stream=True)))
    assert [event["sequence_number"] for event in first] == list(range(len(first)))
    path = f"{PATH}/{first[0]['response']['id']}?stream=true"
    for _ in range(2):
        whole = events(await read(await live.http.get(path)))
        assert whole == first
        rest = events(await read(await live.http.get(f"{path}&starting_after=3")))
        assert rest == first[4:]
        await asyncio.to_thread(live.settle)
        live.redis.flushall()
    padded = events(await read(await live.http.get(f"{path}&include_obfuscation=true")))
    assert all(event["obfuscation"] for event in padded if "delta" in event)


async def test_a_background_response_is_polled_cancelled_and_deleted(live: Live) -> None:
    live.at_once = False
    made = await create(live, background=True)
    assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
    path = f"{PATH}/{made['id']}"
    assert code(await live.http.delete(path), 409) == ("completion_in_progress", "id")
    cancelled = await read(await post(live, f"{path}/cancel"))
    assert cancelled["status"] == "cancelled"
    deleted = await read(await live.http.delete(path))
    assert deleted == {"id": made["id"], "object": "response", "deleted": True}
    assert code(await live.http.get(path), 404) == ("response_not_found", "id")
    assert not await StoredResponse.objects.aexists()


async def test_a_background_stream_outlives_its_connection(live: Live) -> None:
    live.at_once = False
    stream = await post(live, background=True, stream=True)
    parts = aiter(stream.streaming_content)
    created = json.loads((await anext(parts)).decode().partition("data: ")[2])
    await parts.aclose()
    job_id = created["response"]["id"]
    assert created["response"]["status"] == "queued"
    await asyncio.to_thread(run, live, job_id, "He", "llo")
    rest = await read(await live.http.get(f"{PATH}/{job_id}?stream=true&starting_after=0"))
    assert events(rest)[0]["sequence_number"] == 1
    assert text_of(events(rest)[-1]["response"]) == "Hello"


async def test_a_stored_stream_goes_on_where_its_web_process_stops(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.at_once = False
    stream = await post(live, stream=True)
    parts = aiter(stream.streaming_content)
    created = json.loads((await anext(parts)).decode().partition("data: ")[2])
    job_id = created["response"]["id"]
    claim = await asyncio.to_thread(live.worker.claim, job_id)
    gains = [ChoiceEvent(0, [65], "He", None), ChoiceEvent(0, [65], "llo", "stop")]
    steps = [StepEvent(job_id, claim.attempt, 1 + i, [gain]) for i, gain in enumerate(gains)]
    cancelled: list[str] = []

    def cancel(job_id: str) -> Coroutine[None, None, None]:
        cancelled.append(job_id)
        return asyncio.sleep(0)

    monkeypatch.setattr(live.process, "cancel_job", cancel)
    with monkeypatch.context() as patch:
        patch.setattr(live.process, "is_closing", True)
        live.worker.execution.publish(steps[:1], [])
        rest = b"".join([part async for part in parts]).decode()
    assert events(rest)[-1]["code"] == "server_shutting_down"
    end = Ending(job_id, claim.attempt, 3, "completed", None, Usage(3, 2, 1))
    live.worker.execution.publish(steps[1:], [end])
    assert not cancelled
    after = events(rest)[-1]["sequence_number"]
    again = await read(await live.http.get(f"{PATH}/{job_id}?stream=true&starting_after={after}"))
    assert text_of(events(again)[-1]["response"]) == "Hello"


async def test_a_repeated_request_runs_once(live: Live) -> None:
    made = await create(live, key="k")
    again = await post(live, key="k")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert await read(again) == made
    assert len(live.sent) == 1


async def test_a_response_goes_on_from_earlier_ones(live: Live) -> None:
    one = await create(live, input="First", instructions="Once.")
    await asyncio.to_thread(live.settle)
    live.redis.delete(f"j:job:{one['id']}", f"j:ev:{one['id']}")
    two = await create(live, input="Second", previous_response_id=one["id"])
    live.at_once = False
    three = await create(
        live, input="Third", previous_response_id=two["id"], background=True, instructions="Now."
    )
    prompt = prompt_of(live, three["id"])
    for text in ("<system>Now.", "<user>First", "<assistant>AB", "<user>Second", "<user>Third"):
        assert prompt.count(text) == (2 if text == "<assistant>AB" else 1), prompt
    assert "Once." not in prompt
    waiting = await post(live, previous_response_id=three["id"])
    assert code(waiting, 400) == ("invalid_value", "previous_response_id")
    await live.http.delete(f"{PATH}/{one['id']}")
    broken = await post(live, previous_response_id=two["id"])
    assert code(broken, 400) == ("previous_response_not_found", "previous_response_id")
    assert one["id"] in json.loads(broken.content)["error"]["message"]


async def test_items_are_referred_to(live: Live) -> None:
    one = await create(live, input="First")
    listed = await get(live, f"{PATH}/{one['id']}/input_items")
    refs = [{"type": "item_reference", "id": each["id"]} for each in listed["data"] + one["output"]]
    live.at_once = False
    body = {"background": True, "input": [*refs, {"role": "user", "content": "Second"}]}
    two = await create(live, **body)
    prompt = prompt_of(live, two["id"])
    assert "<user>First" in prompt
    assert "<assistant>AB" in prompt
    with_status = [{**ref, "status": None} for ref in refs]
    three = await create(live, **{**body, "input": with_status})
    assert "<user>First" in prompt_of(live, three["id"])
    many = [{"type": "item_reference", "id": f"msg_{index}"} for index in range(40_000)]
    assert code(await post(live, input=many), 400) == ("array_above_max_length", "input")
    wrong = [{"type": "item_reference", "id": "msg_\0"}, {"role": "user", "content": "a"}]
    assert code(await post(live, input=wrong), 404) == ("item_not_found", "input[0].id")


@pytest.mark.parametrize("field", ["instructions", "user"])
async def test_a_text_that_cannot_be_stored_can_be_sent_without_storing(
    live: Live, field: str
) -> None:
    refused = await post(live, **{field: "a\0"})
    assert code(refused, 400)[0] == "invalid_value"
    assert '"store": false' in json.loads(refused.content)["error"]["message"]
    assert text_of(await create(live, store=False, **{field: "a\0"})) == "AB"


async def test_responses_and_conversations_expire(live: Live) -> None:
    conversation = (await read(await post(live, "/v1/conversations")))["id"]
    made = await create(live)
    await asyncio.to_thread(live.settle)
    live.redis.flushall()
    past = timezone.now() - timedelta(seconds=1)
    await Job.objects.aupdate(expires_at=past)
    await Conversation.objects.aupdate(expires_at=past)
    for kept in (True, False):
        for path in (f"{PATH}/{made['id']}", f"{PATH}/{made['id']}/input_items"):
            assert (await live.http.get(path)).status_code == 404
        assert (await live.http.get(f"/v1/conversations/{conversation}")).status_code == 404
        assert (await post(live, previous_response_id=made["id"])).status_code == 400
        assert await StoredResponse.objects.aexists() == kept
        await sync_to_async(pruning.prune)(timezone.now())
    assert not await Conversation.objects.aexists()


async def test_tools_are_called_and_their_results_read(live: Live, roomy: str) -> None:
    live.at_once = False
    tool = {"type": "function", "name": "now", "parameters": {"type": "object"}}
    body = {"model": roomy, "tools": [tool], "input": "Time?", "background": True}
    made = await create(live, **body, tool_choice="required", max_output_tokens=60)
    call = "<tool_call>now\n</tool_call>"
    await asyncio.to_thread(run, live, made["id"], call)
    ended = await get(live, f"{PATH}/{made['id']}")
    (item,) = ended["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "now", "{}")
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "noon"}
    again = await create(live, **{**body, "input": [output]}, previous_response_id=made["id"])
    assert "noon" in prompt_of(live, again["id"])


async def test_an_answer_is_sent_back_as_it_is(live: Live, roomy: str) -> None:
    live.at_once = False
    tools = [
        {"type": "function", "name": "now", "parameters": {"type": "object"}},
        {"type": "custom", "name": "say"},
    ]
    body = {"model": roomy, "tools": tools, "background": True}
    made = await create(live, **body, max_output_tokens=60)
    calls = [ToolCall("now", {}), ToolCall("say", {"input": "words"})]
    texts = [TOOL_FORMATS["glm"].write(each) for each in calls]
    await asyncio.to_thread(run, live, made["id"], "<think>hm</think>So", *texts)
    output = (await get(live, f"{PATH}/{made['id']}"))["output"]
    kinds = [item["type"] for item in output]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call"]
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in output[2:]
    ]
    again = await create(live, **body, input=[{"role": "user", "content": "Hi"}, *output, *results])
    listed = await get(live, f"{PATH}/{again['id']}/input_items?order=asc")
    kept = [{**item, "id": ""} for item in listed["data"][1:5]]
    assert kept == [{**item, "id": ""} for item in output]
    prompt = prompt_of(live, again["id"])
    assert all(text in prompt for text in ("So", "now", "words", "done"))


async def test_a_constrained_response_is_closed(live: Live) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "a{9}"}
    body = {"text": {"format": form}, "close": True}
    assert code(await post(live, **body, max_output_tokens=8), 400)[1] == "max_output_tokens"
    live.at_once = False
    made = await create(live, **body, max_output_tokens=9, background=True)
    raw: Any = live.redis.hget(f"j:job:{made['id']}", "request")
    assert decode_job_request(raw).close is True
    await asyncio.to_thread(run, live, made["id"], "a" * 9, reason="length")
    assert text_of(await get(live, f"{PATH}/{made['id']}")) == "a" * 9


async def test_strangers_go_on_from_nothing(live: Live, stranger: Any) -> None:
    made = await create(live)
    conversation = (await read(await post(live, "/v1/conversations")))["id"]
    reference = {"type": "item_reference", "id": made["output"][0]["id"]}
    live.http = Caller(stranger)
    for body, status, param in (
        ({"previous_response_id": made["id"]}, 400, "previous_response_id"),
        ({"conversation": conversation}, 404, "conversation"),
        ({"input": [reference]}, 404, "input[0].id"),
    ):
        assert code(await post(live, **body), status)[1] == param


@pytest.mark.parametrize(
    ("path", "name", "code"),
    [
        ("/v1/responses/resp_1?include[]=message.output_text.logprobs", "include[]", "unsupported"),
        ("/v1/responses/resp_1?streams=true", "streams", "unknown"),
        ("/v1/completions/cmpl-1?waits=1", "waits", "unknown"),
        ("/v1/chat/completions/chatcmpl-1?include_obfuscation=true", "include_obfuscation", "unkn"),
    ],
)
def test_query_parameters_without_effect_are_refused(
    api: Client, path: str, name: str, code: str
) -> None:
    error = api.get(path).json()["error"]
    assert error["code"].startswith(code)
    assert error["param"] == name


async def count(live: Live, **body: Any) -> int:
    answer = await post(live, f"{PATH}/input_tokens", model="tiny", **body)
    assert answer.status_code == 200, answer.content
    found = await read(answer)
    assert found.keys() == {"object", "input_tokens"}
    assert found["object"] == "response.input_tokens"
    tokens: int = found["input_tokens"]
    return tokens


async def test_the_tokens_of_a_prompt_are_counted(live: Live) -> None:
    first = await create(live)
    assert await count(live, input="Hi") == first["usage"]["input_tokens"]
    more = {"input": "And?", "instructions": "Be kind.", "previous_response_id": first["id"]}
    second = await create(live, **more)
    assert (
        await count(live, **more) == second["usage"]["input_tokens"] > await count(live, input="Hi")
    )
    assert await count(live, input="a" * 5000) > 5000  # beyond the context
    turns = [{"role": "user", "content": text} for text in ("a" * 5000, "Hi")]
    assert await count(live, input=turns, truncation="auto") == first["usage"]["input_tokens"]
    jobs = await Job.objects.acount()
    assert jobs == 2  # a count makes none


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "Hi", "max_output_tokens": 2}, ("unsupported_parameter", "max_output_tokens")),
        ({"input": "Hi", "stream": True}, ("unsupported_parameter", "stream")),
        ({"input": "Hi", "output_tokens": 2}, ("unknown_parameter", "output_tokens")),
        ({"input": 1}, ("invalid_type", "input")),
        ({}, ("missing_required_parameter", "input")),
        ({"input": "Hi", "truncation": "some"}, ("invalid_value", "truncation")),
        ({"input": "a" * 5000, "truncation": "auto"}, ("context_length_exceeded", "input")),
    ],
)
async def test_what_is_wrong_with_a_count_is_named(
    live: Live, body: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert code(await post(live, f"{PATH}/input_tokens", model="tiny", **body), 400) == expected
