"""The Messages API over HTTP with a real Redis: answers, streams, errors in its own shape."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from completions.accounts import changes
from completions.accounts.audit import SERVICE
from tests.completions.conftest import Tenant
from tests.completions.endpoints.responding import read, run
from tests.completions.live_api import Caller, Live

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

PATH = "/v1/messages"
BODY: dict[str, Any] = {
    "model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}],
}  # fmt: skip


async def post(live: Live, path: str = PATH, headers: Any = None, **body: Any) -> Any:
    return await live.http.post(
        path, json.dumps({**BODY, **body}), content_type="application/json", headers=headers
    )


def events(text: str) -> list[dict[str, Any]]:
    pairs = [frame.split("\n") for frame in text.strip().split("\n\n")]
    bodies = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {body['type']}" for body in bodies]
    return bodies


def error(answer: Any, status: int) -> tuple[str, str | None]:
    assert answer.status_code == status, answer.content
    body = json.loads(answer.content)
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    return body["error"]["type"], body["error"]["details"]["param"]


async def test_an_answer_and_what_had_no_effect(live: Live) -> None:
    answer = await post(live, metadata={"user_id": "u"}, output_config={"effort": "high"})
    message = await read(answer)
    assert message["content"] == [{"type": "text", "text": "AB"}]
    assert (message["type"], message["stop_reason"]) == ("message", "max_tokens")
    assert message["usage"]["cache_read_input_tokens"] == 1
    assert answer.headers["x-ignored-params"] == "output_config.effort, metadata"
    assert "Location" not in answer.headers


async def test_a_stream_ends_with_its_last_event(live: Live) -> None:
    seen = events(await read(await post(live, stream=True)))
    kinds = [event["type"] for event in seen]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert seen[-2]["usage"]["output_tokens"] == 2


async def test_a_stop_sequence_is_named(live: Live) -> None:
    live.at_once = False
    asked = asyncio.create_task(post(live, stop_sequences=["###"], stream=True))
    stream = await asked
    parts = aiter(stream.streaming_content)
    begun = events((await anext(parts)).decode())[0]["message"]
    await asyncio.to_thread(run, live, begun["id"], "He", "llo")
    rest = events(b"".join([part async for part in parts]).decode())
    assert rest[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


async def test_a_repeated_request_runs_once(live: Live) -> None:
    key = {"Idempotency-Key": "k"}
    made = await read(await post(live, headers=key))
    again = await post(live, headers=key)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Location" not in again.headers
    assert await read(again) == made
    assert len(live.sent) == 1


async def test_no_message_is_made_in_the_background(live: Live) -> None:
    made = await post(live, headers={"Prefer": "respond-async"})
    assert made.status_code == 200
    assert error(await post(live, background=True), 400)[0] == "invalid_request_error"
    message = await read(made)
    answer = await live.http.get(f"/v1/chat/completions/{message['id']}")
    assert answer.status_code == 404


async def test_tokens_are_counted(live: Live) -> None:
    body = {"model": "tiny", "messages": BODY["messages"]}
    path = f"{PATH}/count_tokens"
    counted = await live.http.post(path, json.dumps(body), content_type="application/json")
    used = (await read(await post(live)))["usage"]
    prompt = used["input_tokens"] + used["cache_read_input_tokens"]
    assert await read(counted) == {"input_tokens": prompt}
    assert prompt > 2
    refused = await post(live, path)  # max_tokens means nothing here
    assert error(refused, 400) == ("invalid_request_error", "max_tokens")
    assert "Leave it out" in json.loads(refused.content)["error"]["message"]
    wrong = {**body, "cache_control": {"type": "ephemeral"}}
    counted = await live.http.post(path, json.dumps(wrong), content_type="application/json")
    assert counted.headers["x-ignored-params"] == "cache_control"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize("given", [{}, {"messages": None}])
async def test_messages_are_required(live: Live, path: str, given: dict[str, Any]) -> None:
    body = {"model": "tiny", "max_tokens": 1, **given}
    if path != PATH:
        del body["max_tokens"]
    refused = await live.http.post(path, json.dumps(body), content_type="application/json")
    assert error(refused, 400) == ("invalid_request_error", "messages")


async def test_either_header_has_the_key(live: Live, owner: Tenant) -> None:
    live.http = Caller(owner)
    live.http._key = {"x-api-key": owner.secret, "anthropic-version": "2023-06-01"}
    assert (await post(live)).status_code == 200
    live.http._key = {"x-api-key": "sk-wrong"}
    assert error(await post(live), 401) == ("authentication_error", None)
    live.http._key = {"Authorization": f"Bearer {owner.secret}", "x-api-key": "sk-wrong"}
    assert (await post(live)).status_code == 200
    live.http._key = {}
    assert error(await post(live), 401) == ("authentication_error", None)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (PATH, {"model": "none"}, 404, "not_found_error"),
        (PATH, {"max_tokens": 0}, 400, "invalid_request_error"),
        (f"{PATH}/batches", {}, 404, "not_found_error"),
    ],
)
async def test_errors_have_the_shape_of_the_api(
    live: Live, path: str, body: Any, status: int, kind: str
) -> None:
    assert error(await post(live, path, **body), status)[0] == kind


@pytest.mark.parametrize("method", ["get", "put", "patch", "delete"])
@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_other_methods_are_refused_in_the_shape_of_the_api(
    live: Live, method: str, path: str
) -> None:
    answer = await getattr(live.http, method)(path)
    assert error(answer, 405) == ("invalid_request_error", None)
    assert "POST" in answer.headers["Allow"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_limits_are_refused_in_the_shape_of_the_api(
    live: Live, owner: Tenant, path: str
) -> None:
    _, secret = await sync_to_async(changes.create)(
        owner.organization, "limited", SERVICE, requests_per_minute=1
    )
    body = {**BODY, "max_tokens": 2} if path == PATH else {**BODY}
    if path != PATH:
        del body["max_tokens"]
    headers = {"x-api-key": secret, "Authorization": f"Bearer {secret}"}
    answers = [
        await live.http.post(
            path, json.dumps(body), content_type="application/json", headers=headers
        )
        for _ in range(2)
    ]
    assert answers[0].status_code == 200
    assert error(answers[1], 429) == ("rate_limit_error", None)
    assert int(answers[1].headers["Retry-After"]) > 0


def test_other_methods_and_neighbours(api: Client) -> None:
    assert api.get(PATH).json()["error"]["type"] == "invalid_request_error"
    unknown = api.get("/v1/messages/batches").json()["error"]["message"]
    assert unknown == "Quire does not serve /v1/messages/batches. Use /v1/batches."
    assert "code" in api.get("/v1/messagess").json()["error"]  # OpenAI's
