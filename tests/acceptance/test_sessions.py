"""Sessions over a real engine: what a turn costs, and receipts that hold."""

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire_client import AsyncQuire, Quire
from tests.acceptance.service import MODEL, Installation

pytestmark = pytest.mark.acceptance

BLOCK = 64
"""At least the tokens of a block of the cache: only whole blocks are found again."""
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}

CHANGES: list[Callable[[Any, Any, Any], object]] = [
    lambda call, reply, receipt: receipt["output_ids"][0].__setitem__(0, 5),
    lambda call, reply, receipt: call["token_ids"].__setitem__(0, 5),
    lambda call, reply, receipt: call["token_mask"].pop(),
    lambda call, reply, receipt: reply["message"].update(content="Yes."),
]
"""What may not be changed in a call's choice, the reply's and the receipt of the reply."""


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def quire(service: Installation) -> Any:
    service.wait_served(MODEL)
    with Quire(f"{service.url}/v1", service.key) as client:
        yield client


def test_a_turn_costs_its_new_tokens_only(quire: Quire) -> None:
    filler = "A long beginning. " * 20
    # Greedy: what is sampled behind an end that is ignored may be a special token, which drifts.
    options = {"model": MODEL, "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    answer = quire.sessions.chat("new", say(filler), **options)
    session, seen = answer["session"]["id"], None
    for number in range(3):
        before = answer["choices"][0]
        seen = [*before["prompt_token_ids"], *before["token_ids"]]
        answer = quire.sessions.chat(session, say(f"Go on, {number}."), **options)
        prompt = answer["choices"][0]["prompt_token_ids"]
        assert prompt[: len(seen)] == seen  # id for id
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > len(seen) - BLOCK
        assert answer["session"]["drift"] is None


@pytest.mark.long
def test_its_trajectory_is_verified_and_replayed(
    service: Installation, quire: Quire, tmp_path: Path
) -> None:
    options = {"model": MODEL, "temperature": 0.8, "max_tokens": 40, "logprobs": True}
    call = quire.sessions.chat(
        "new", say("Add 3."), tools=[TOOL], tool_choice="required", n=2, **options
    )
    chosen = call["choices"][1]
    result = {
        "role": "tool",
        "tool_call_id": chosen["message"]["tool_calls"][0]["id"],
        "content": "7",
    }
    session = call["session"]["id"]
    reply = quire.sessions.chat(
        session, [result], after=chosen["id"], regex="[a-z]{2,9}", **options
    )
    lines = quire.sessions.trajectory(session, reply["choices"][0]["id"])
    assert [line["choice"] for line in lines] == [1, 0]
    for line in lines:
        for each in line["choices"]:
            assert len(each["token_mask"]) == len(each["token_ids"])
            assert len(each["logprobs"]["chosen"]) == len(each["token_ids"])
            assert set(each["token_mask"]) <= {1, 2}
    file = tmp_path / "trajectory.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "2 lines hold" in service.manage("verify", str(file))
    assert "2 lines are the same" in service.manage("replay", str(file))
    for change in CHANGES:
        changed = copy.deepcopy(lines)
        change(changed[0]["choices"][1], changed[1]["choices"][0], changed[1]["receipt"])
        file.write_text("".join(json.dumps(line) + "\n" for line in changed))
        with pytest.raises(AssertionError, match="1 of 2 lines fail"):
            service.manage("verify", str(file))


def test_the_client_keeps_sessions(service: Installation, quire: Quire) -> None:
    made = quire.sessions.create(model=MODEL, on_drift="fail")
    turn = quire.sessions.complete(made["id"], [1, 2, 3], max_tokens=2, ignore_eos=True)
    shown = quire.sessions.get(made["id"])
    assert [each["choices"] for each in shown["turns"]] == [[turn["choices"][0]["id"]]]
    assert made["id"] in [each["id"] for each in quire.sessions.list(limit=100)["data"]]

    async def read() -> Any:
        async with AsyncQuire(f"{service.url}/v1", service.key) as client:
            return await client.sessions.trajectory(made["id"])

    (line,) = asyncio.run(read())
    assert line["given"]["token_ids"] == [1, 2, 3]
    assert quire.sessions.delete(made["id"])["deleted"]
    with service.http() as http:
        assert http.get(f"/v1/sessions/{made['id']}").status_code == httpx.codes.NOT_FOUND
