"""POST /v1/responses/compact with a real Redis: a job like others, and what goes on from it."""

import asyncio
import json
from typing import Any

import pytest

from completions.delivery.idempotency import REPLAYED
from completions.models import Job, UsageRecord
from completions.requests import compaction
from completions.responses.compaction import unseal
from tests.completions.endpoints.responding import PATH, code, create, post, prompt_of, read
from tests.completions.live_api import Live

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

COMPACT = f"{PATH}/compact"


@pytest.fixture(autouse=True)
def short_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model reads 128 bytes."""
    monkeypatch.setattr(compaction, "ORDER", "Sum up.")


async def compact(live: Live, **body: Any) -> dict[str, Any]:
    answer = await post(live, COMPACT, **{"model": "tiny", "input": "Hi"} | body)
    assert answer.status_code == 200, answer.content
    made: dict[str, Any] = await read(answer)
    return made


async def test_a_conversation_is_compacted_and_goes_on(live: Live) -> None:
    system = {"role": "system", "content": "Be kind."}
    made = await compact(live, input=[system, {"role": "user", "content": "We launch."}])
    assert made["object"] == "response.compaction"
    kept, item = made["output"]
    assert kept["content"] == [{"type": "input_text", "text": "Be kind."}]
    assert made["usage"]["output_tokens"] > 0
    (owner,) = await asyncio.to_thread(_list_owners, live)
    summary = unseal(item["encrypted_content"], owner)[1]["content"][0]["text"]
    live.at_once = False
    body = {"input": [*made["output"], {"role": "user", "content": "When?"}], "background": True}
    going_on = await create(live, **body)
    prompt = prompt_of(live, going_on["id"])
    assert prompt.index("Be kind.") < prompt.index(summary) < prompt.index("When?")
    listed = json.loads((await live.http.get(f"{PATH}/{going_on['id']}/input_items")).content)
    assert {"type": "compaction", "encrypted_content": item["encrypted_content"]}.items() <= (
        listed["data"][1].items()
    )


def _list_owners(live: Live) -> list[int]:
    live.settle()
    return list(UsageRecord.objects.values_list("organization_id", flat=True))


async def test_it_is_counted_and_not_stored(live: Live) -> None:
    first = await create(live)
    made = await compact(live, previous_response_id=first["id"], input=None)
    await asyncio.to_thread(live.settle)
    assert await UsageRecord.objects.acount() == 2
    assert await Job.objects.acount() == 1
    for path in (made["id"], f"{made['id']}/input_items"):
        assert code(await live.http.get(f"{PATH}/{path}"), 404) == ("response_not_found", "id")
    refused = await post(live, previous_response_id=made["id"])
    assert code(refused, 400) == ("previous_response_not_found", "previous_response_id")


async def test_the_same_key_returns_the_same_summary(live: Live) -> None:
    made = [
        await live.http.post(
            COMPACT,
            json.dumps({"model": "tiny", "input": "Hi"}),
            content_type="application/json",
            headers={"Idempotency-Key": "k"},
        )
        for _ in range(2)
    ]
    first, second = [json.loads(each.content) for each in made]
    assert second["id"] == first["id"]
    assert made[1].headers[REPLAYED] == "true"


async def test_what_is_wrong_is_refused(live: Live) -> None:
    assert code(await post(live, COMPACT, input="Hi"), 400) == (
        "missing_required_parameter",
        "model",
    )
    missing = await post(live, COMPACT, model="tiny", previous_response_id="resp_x")
    assert code(missing, 400) == ("previous_response_not_found", "previous_response_id")
    assert (await live.http.get(COMPACT)).status_code == 405
