"""Turns over HTTP with a real Redis: what is refused, and what a refusal leaves."""

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async

from completions.models import Session
from tests.completions.live_api import PATH, Caller
from tests.completions.sessions.turns import (
    CHAT,
    body_of,
    lines_of,
    refusal,
    say,
)

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


async def test_a_message_that_no_export_can_hold_is_refused(session) -> None:
    message = {"role": "user", "content": "x", "unread": 2**70}
    refused = await session.post(CHAT, messages=[message], session="new", prompt=None)
    assert refusal(refused) == (400, "invalid_value", "messages")
    message["unread"] = 2**64 - 1
    first = body_of(await session.post(CHAT, messages=[message], session="new", prompt=None))
    await asyncio.to_thread(session.settle)
    exported = await session.http.get(f"/v1/sessions/{first['session']['id']}/trajectory")
    assert (await lines_of(exported))[0]["given"]["messages"] == [message]


async def test_several_choices_and_running_turns_need_after(session) -> None:
    first = await say(session, "x", n=1)
    name = first["session"]["id"]
    session.at_once = False
    waiting = await say(session, "y", name, 202, background=True)
    messages = [{"role": "user", "content": "z"}]
    running = await session.post(CHAT, messages=messages, session=name, prompt=None)
    assert refusal(running) == (409, "turn_in_progress", "after")
    session.at_once = True
    beside = await say(session, "z", name, after=f"{first['id']}:0")
    assert beside["session"]["after"] == f"{first['id']}:0"
    session.worker.run(waiting["id"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"session": "session_0"}, (404, "session_not_found", "session")),
        ({"session": "session_\x00"}, (404, "session_not_found", "session")),
        ({"session": 5}, (400, "invalid_type", "session")),
        ({"after": "root"}, (400, "invalid_value", "after")),
        ({"on_drift": "keep"}, (400, "invalid_value", "on_drift")),
        ({"session": "new", "after": "x:0"}, (400, "invalid_value", "after")),
        ({"session": "new", "after": 5}, (400, "invalid_type", "after")),
        ({"session": "new", "on_drift": "no"}, (400, "invalid_value", "on_drift")),
        ({"session": "new", "prompt": [[1], [2]]}, (400, "invalid_value", "prompt")),
        (
            {"session": "new", "truncate_sequence": True},
            (400, "invalid_value", "truncate_sequence"),
        ),
    ],
)
async def test_what_is_refused(session, fields, expected) -> None:
    assert refusal(await session.post(**fields)) == expected
    assert not await Session.objects.aexists()


async def test_the_refusal_of_a_text_that_sql_cannot_store_names_the_session(session) -> None:
    answer = await session.post(session="new", stop="\x00")
    assert refusal(answer) == (400, "invalid_value", None)
    assert "without background, session and" in json.loads(answer.content)["error"]["message"]
    assert not await Session.objects.aexists()


async def test_a_choice_of_another_session_or_model_is_refused(session) -> None:
    first, other = await say(session, "x"), await say(session, "x")
    name = first["session"]["id"]
    for after in (f"{other['id']}:0", f"{first['id']}:1", first["id"], "a\x00:0"):
        refused = await session.post(session=name, after=after)
        assert refusal(refused) == (400, "invalid_value", "after")
    refused = await session.post(session=name, model="texts")
    assert refusal(refused) == (400, "invalid_value", "model")


async def test_strangers_find_no_session(session, stranger) -> None:
    name = (await say(session, "x"))["session"]["id"]
    them = Caller(stranger)
    body = {"model": "tiny", "prompt": [1], "session": name}
    answer = await them.post(PATH, json.dumps(body), content_type="application/json")
    assert refusal(answer) == (404, "session_not_found", "session")
    for path in (f"/v1/sessions/{name}", f"/v1/sessions/{name}/trajectory"):
        assert (await them.get(path)).status_code == 404
    assert (await them.delete(f"/v1/sessions/{name}")).status_code == 404
    assert body_of(await them.get("/v1/sessions"))["data"] == []


async def test_a_refused_turn_leaves_no_session(session) -> None:
    session.redis.flushall()  # no worker
    assert (await session.post(session="new")).status_code == 503
    async with asyncio.timeout(10):
        while await Session.objects.aexists():  # noqa: ASYNC110 - SQL has no event for it
            await asyncio.sleep(0.01)


async def test_full_storage_takes_no_turn(session, settings, owner) -> None:
    first = await say(session, "x")
    settings.MAX_STORED_BYTES = 1
    refused = await session.post(session=first["session"]["id"], prompt=[1])
    assert refusal(refused) == (400, "storage_limit_exceeded", "session")
    await sync_to_async(Session.objects.all().delete)()
    settings.MAX_STORED_BYTES = 10**6
    assert (await session.post(session="new", prompt=[1])).status_code == 200
    await sync_to_async(Session.objects.all().delete)()
    settings.MAX_STORED_BYTES = 2048
    body = json.dumps({"model": "tiny"})
    for status in (200, 200, 400):  # a session without turns takes a kilobyte
        made = await session.http.post("/v1/sessions", body, content_type="application/json")
        assert made.status_code == status
    assert refusal(made) == (400, "storage_limit_exceeded", "session")
