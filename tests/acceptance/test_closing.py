"""Chats that are to be closed: of every kind of constraint, behind thoughts, each answer at the
limit is whole, streamed or not, and the same after its worker was killed."""

import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from tests.acceptance.kills.test_crowd import SMALL_WORKER
from tests.acceptance.small_model import SMALL

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"enum": [1, 22]}},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
TAG = {"type": "tag", "begin": "<f>", "end": "</f>"}
TREE = {
    "type": "structural_tag",
    "format": {**TAG, "content": {"type": "json_schema", "json_schema": SCHEMA}},
}
LIMIT = 90
"""Tokens. The model is random, so it comes to its limit: usually in its thoughts."""


def is_instance(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def is_tagged(text: str) -> bool:
    return text.startswith("<f>") and text.endswith("</f>") and is_instance(text[3:-4])


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


Kind = tuple[dict[str, Any], Callable[[str], bool]]
KINDS: dict[str, Kind] = {
    "schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        },
        is_instance,
    ),
    "any object": (
        {"response_format": {"type": "json_object"}},
        lambda text: isinstance(json.loads(text), dict),
    ),
    "regex": ({"regex": "[a-z]{8,}-[0-9]{3}"}, matches("[a-z]{8,}-[0-9]{3}")),
    "ebnf": ({"ebnf": 'root ::= "(" [a-z]+ ("," [a-z]+)* ")"'}, matches(r"\([a-z]+(,[a-z]+)*\)")),
    "lark": (
        {"grammar": {"type": "lark", "value": 'start: "[" /[a-z]+/ ("," /[a-z]+/)* "]"'}},
        matches(r"\[[a-z]+(,[a-z]+)*\]"),
    ),
    "structural tag": ({"structural_tag": TREE}, is_tagged),
    "calls": ({"tools": [TOOL], "tool_choice": "required"}, lambda text: not text),
    "calls or text": ({"tools": [TOOL], "tool_choice": "auto"}, lambda text: True),
    "calls or a schema": (
        {
            "tools": [TOOL],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            },
        },
        lambda text: not text or is_instance(text),
    ),
}
MAY_END_ANYWHERE = ("calls or text", "any object", "regex", "ebnf", "lark")
"""Kinds of which a choice may have ended by itself even with thoughts, or may be just cut."""
CASES = [(name, thinks) for name in KINDS for thinks in (True, False)]


def ask(name: str, thinks: bool, **fields: object) -> dict[str, Any]:
    """A chat of two choices. Without thoughts, drafts from the prompt are likelier."""
    return {
        "model": SMALL,
        "messages": [{"role": "user", "content": "(ab,ab,ab,ab,ab) [ab,ab,ab] weather"}],
        "thinking": {"type": "enabled" if thinks else "disabled"},
        "max_tokens": LIMIT,
        "close": True,
        "n": 2,
        "seed": 5,
        "temperature": 0.9,
        "return_token_ids": True,
        "return_meta_info": True,
        **KINDS[name][0],
        **fields,
    }


def check(name: str, choice: dict[str, Any]) -> None:
    """Check that the choice is a whole answer of its kind, in at most so many tokens."""
    message = choice["message"]
    calls = message.get("tool_calls") or []
    assert all(is_instance(call["function"]["arguments"]) for call in calls)
    assert KINDS[name][1](message["content"] or ""), message
    assert calls or name != "calls"
    constraint = choice["meta_info"]["constraint"]
    may_end_before = name in MAY_END_ANYWHERE or not message.get("reasoning_content")
    assert constraint["closed"] in ((True, None) if may_end_before else (True,))
    assert len(choice["token_ids"]) <= LIMIT
    if constraint["closed"]:
        assert choice["finish_reason"] == "length"
        assert constraint["closed_at"] < len(choice["token_ids"])


def join(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the choices of a stream: tokens, text, thoughts, arguments and the reason."""
    joined: dict[int, dict[str, Any]] = {}
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        whole = joined.setdefault(
            choice["index"], {"ids": [], "text": "", "thoughts": "", "calls": {}, "reason": None}
        )
        delta = choice["delta"]
        whole["ids"] += choice.get("token_ids") or []
        whole["text"] += delta.get("content") or ""
        whole["thoughts"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or []:
            index, written = call["index"], call["function"].get("arguments") or ""
            whole["calls"][index] = whole["calls"].get(index, "") + written
        whole["reason"] = choice["finish_reason"] or whole["reason"]
    return joined


def read_stream(http, location: str | None = None, body: object = None, strike=None, after=0):
    """Return a stream's chunks, whose numbers have neither gap nor repeat."""
    send = ("GET", location, None) if body is None else ("POST", "/v1/chat/completions", body)
    chunks: list[dict[str, Any]] = []
    params = {"stream": "true"} if body is None else {}
    with http.stream(send[0], send[1], json=send[2], params=params, timeout=120) as response:
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunks.append(json.loads(line.removeprefix("data: ")))
            assert "error" not in chunks[-1], chunks[-1]
            if strike is not None and len(chunks) == after:
                strike()
    return chunks


@pytest.mark.parametrize(("name", "thinks"), CASES)
def test_each_answer_at_the_limit_is_whole_streamed_or_not(service, http, name, thinks):
    service.wait_served(SMALL)
    answer = http.post("/v1/chat/completions", json=ask(name, thinks), timeout=120).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    streamed = join(read_stream(http, body=ask(name, thinks, stream=True)))
    for choice in answer["choices"]:
        check(name, choice)
        assert bool(choice["message"].get("reasoning_content")) is thinks
        other, message = streamed[choice["index"]], choice["message"]
        assert other["ids"] == choice["token_ids"]
        assert other["text"] == (message["content"] or "")
        assert other["thoughts"] == (message.get("reasoning_content") or "")
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
        assert list(other["calls"].values()) == calls
        assert other["reason"] == choice["finish_reason"]


def test_answers_are_closed_alike_after_their_worker_was_killed(service, http):
    """All kinds at once, killed while the first of them is about half written."""
    service.wait_served(SMALL)
    bodies = [ask(name, thinks, background=True, n=1) for name, thinks in CASES]

    def run(strike=None) -> list[dict[int, dict[str, Any]]]:
        sent = [http.post("/v1/chat/completions", json=body) for body in bodies]
        streams = []
        for number, response in enumerate(sent):
            hit = strike if number == 0 else None
            streams.append(read_stream(http, response.headers["Location"], strike=hit, after=40))
        return [join(chunks) for chunks in streams]

    unbroken = run()
    victim = service.pid(SMALL_WORKER)
    broken = run(lambda: os.kill(victim, signal.SIGKILL))
    assert service.pid(SMALL_WORKER, besides=victim)
    assert broken == unbroken
