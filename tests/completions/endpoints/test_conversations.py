"""Conversations over HTTP with a real Redis: what they gain from responses, and their bounds."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from completions.delivery import history
from completions.endpoints import responses
from completions.models import Conversation
from completions.requests.context import Earlier
from tests.completions.endpoints.responding import (
    PATH,
    code,
    create,
    get,
    post,
    prompt_of,
    read,
    text_of,
)
from tests.completions.live_api import Live

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


async def test_a_conversation_gains_what_responses_say(live: Live) -> None:
    items = [{"role": "user", "content": "Zero"}]
    made = await read(await post(live, "/v1/conversations", items=items, metadata={"a": "b"}))
    assert (made["object"], made["metadata"]) == ("conversation", {"a": "b"})
    path = f"/v1/conversations/{made['id']}"
    one = await create(live, input="First", conversation=made["id"])
    assert one["conversation"] == {"id": made["id"]}
    live.at_once = False
    two = await create(live, input="Next", conversation={"id": made["id"]}, background=True)
    prompt = prompt_of(live, two["id"])
    assert prompt.index("<user>Zero") < prompt.index("<user>First") < prompt.index("<assistant>AB")
    assert code(await post(live, conversation=made["id"]), 409) == (
        "conversation_locked",
        "conversation",
    )
    await asyncio.to_thread(live.worker.run, two["id"])
    await asyncio.to_thread(live.settle)
    await asyncio.to_thread(live.settle)
    listed = (await get(live, f"{path}/items?order=asc"))["data"]
    texts = [item["content"][0]["text"] for item in listed]
    assert texts == ["Zero", "First", "AB", "Next", "AB"]
    assert len({item["id"] for item in listed}) == 5
    page = await get(live, f"{path}/items?limit=2&after={listed[-1]['id']}")
    assert [item["id"] for item in page["data"]] == [listed[3]["id"], listed[2]["id"]]
    assert page["has_more"] is True
    assert await get(live, f"{path}/items/{listed[0]['id']}") == listed[0]
    assert (await live.http.delete(f"{path}/items/{listed[0]['id']}")).status_code == 200
    gone = await live.http.get(f"{path}/items/{listed[0]['id']}")
    assert code(gone, 404) == ("item_not_found", "item_id")
    added = await read(await post(live, f"{path}/items", items=items))
    assert [item["content"][0]["text"] for item in added["data"]] == ["Zero"]
    changed = await read(await post(live, path, metadata={}))
    assert changed["metadata"] == (await get(live, path))["metadata"] == {}
    deleted = await read(await live.http.delete(path))
    assert deleted == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    assert code(await live.http.get(path), 404) == ("conversation_not_found", "id")
    assert code(await post(live, conversation=made["id"]), 404) == (
        "conversation_not_found",
        "conversation",
    )
    assert (await get(live, f"{PATH}/{one['id']}"))["id"] == one["id"]


async def test_a_deleted_response_leaves_its_items_to_its_conversation(live: Live) -> None:
    conversation = (await read(await post(live, "/v1/conversations")))["id"]
    made = await create(live, conversation=conversation)
    assert (await live.http.delete(f"{PATH}/{made['id']}")).status_code == 200
    listed = await get(live, f"/v1/conversations/{conversation}/items?order=asc")
    assert [item["role"] for item in listed["data"]] == ["user", "assistant"]


async def test_no_response_begins_on_items_that_are_not_the_last(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = (await read(await post(live, "/v1/conversations")))["id"]
    earlier = responses.read_earlier

    async def read_slowly(*args: Any) -> Earlier:
        """Meanwhile, another response begins, ends and is settled."""
        found = await earlier(*args)
        monkeypatch.setattr(responses, "read_earlier", earlier)
        await create(live, input="My name is Ada.", conversation=conversation)
        await asyncio.to_thread(live.settle)
        return found

    monkeypatch.setattr(responses, "read_earlier", read_slowly)
    late = await post(live, input="Who am I?", conversation=conversation)
    assert code(late, 409) == ("conversation_locked", "conversation")
    live.at_once = False
    again = await create(live, input="Who am I?", conversation=conversation, background=True)
    assert "Ada" in prompt_of(live, again["id"])


async def test_a_response_that_begins_puts_off_the_expiry_of_its_conversation(live: Live) -> None:
    conversation = (await read(await post(live, "/v1/conversations")))["id"]
    soon = timezone.now() + timedelta(seconds=60)
    await Conversation.objects.aupdate(expires_at=soon)
    live.at_once = False
    await create(live, conversation=conversation, background=True)
    assert (await Conversation.objects.aget()).expires_at > soon


async def test_what_a_response_goes_on_from_is_bounded(
    live: Live, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    one = await create(live, input="a" * 70)
    conversation = await read(await post(live, "/v1/conversations"))
    path = f"/v1/conversations/{conversation['id']}/items"
    items = [{"role": "user", "content": "a" * 40}]
    (item,) = (await read(await post(live, path, items=items)))["data"]
    refs = [{"type": "item_reference", "id": each["id"]} for each in (item, *one["output"])]
    size = (await Conversation.objects.aget()).bytes
    assert size == len(json.dumps(item, separators=(",", ":")))
    with monkeypatch.context() as patch:
        patch.setattr(history, "MAX_BYTES", size - 1)
        for body in (
            {"previous_response_id": one["id"]}, {"conversation": conversation["id"]},
            {"input": refs[:1]}, {"input": refs[1:]},
        ):  # fmt: skip
            (name,) = body
            assert code(await post(live, **body), 400) == ("invalid_value", name)
        assert code(await post(live, path, items=items), 400) == ("invalid_value", "items")
        assert (await get(live, path))["data"] == [item]
    settings.MAX_STORED_BYTES = size
    for where in (path, "/v1/conversations"):
        refused = await post(live, where, items=items)
        assert code(refused, 400) == ("storage_limit_exceeded", "items")
    assert (await live.http.delete(f"{path}/{item['id']}")).status_code == 200
    assert (await Conversation.objects.aget()).bytes == 0


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_a_response_that_says_nothing_unlocks_its_conversation(live: Live, end: str) -> None:
    conversation = (await read(await post(live, "/v1/conversations")))["id"]
    live.at_once = False
    made = await create(live, conversation=conversation, background=True)
    error = "worker_error" if end == "failed" else None
    await asyncio.to_thread(live.worker.run, made["id"], end, error)
    live.at_once = True
    assert text_of(await create(live, input="Go on", conversation=conversation)) == "AB"
    listed = await get(live, f"/v1/conversations/{conversation}/items?order=asc")
    assert [item["role"] for item in listed["data"]] == ["user", "assistant"]


@pytest.mark.long
def test_one_response_at_a_time_begins_in_a_conversation(run_apart: Any) -> None:
    assert run_apart("responses_together") == ["1", "2"]
