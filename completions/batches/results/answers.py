"""What the body of a line's response says, in the terms of a chat, whatever route answered."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from completions.chat.tools import CUSTOM, FUNCTION, INPUT
from completions.responses.choice_record import ABORT, LENGTH

Body = Mapping[str, Any]
_STATUSES: Final = {"incomplete": LENGTH, "cancelled": ABORT}
_STOP_REASONS: Final = {"max_tokens": LENGTH, "pause_turn": ABORT}
"""Finish reasons by the status of a response, and by the stop reason of a message; others are
`stop`."""


def list_choices(body: Body) -> Sequence[Body]:
    """Return the choices of a completion or a chat; a response or a message as the one choice that
    a chat would have."""
    if "choices" in body:
        choices: Sequence[Body] = body["choices"]
        return choices
    if "output" in body:
        return [_read_response(body)]
    return [_read_message(body)]


def count_tokens(body: Body) -> dict[str, int]:
    """Return `prompt_tokens`, `completion_tokens` and `reasoning_tokens` of a body's usage; without
    one, zeros."""
    usage = body.get("usage") or {}
    details = usage.get("output_tokens_details") or {}
    cached = usage.get("cache_read_input_tokens", 0)  # in a message, these are no input tokens
    return {
        "prompt_tokens": usage.get("prompt_tokens", usage.get("input_tokens", 0) + cached),
        "completion_tokens": usage.get("completion_tokens", usage.get("output_tokens", 0)),
        "reasoning_tokens": usage.get(
            "reasoning_tokens", details.get("reasoning_tokens", details.get("thinking_tokens", 0))
        ),
    }


def _read_response(body: Body) -> Body:
    texts: dict[str, list[str]] = {"message": [], "reasoning": []}
    calls: list[Body] = []
    for item in body["output"]:
        kind = item["type"]
        if kind in texts:
            texts[kind] += (part["text"] for part in item["content"])
        elif INPUT in item:
            called = {"name": item["name"], INPUT: item[INPUT]}
            calls.append({"id": item["call_id"], "type": CUSTOM, CUSTOM: called})
        else:
            calls.append(_make_call(item["call_id"], item["name"], item["arguments"]))
    reason = _STATUSES.get(body["status"], "stop")
    return _make_choice(texts["message"], texts["reasoning"], calls, reason, None)


def _read_message(body: Body) -> Body:
    blocks = body["content"]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    calls = [
        _make_call(block["id"], block["name"], block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    ]
    reason = _STOP_REASONS.get(body["stop_reason"], "stop")
    return _make_choice(texts, thoughts, calls, reason, body["stop_sequence"])


def _make_call(call_id: str, name: str, arguments: object) -> Body:
    called = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": FUNCTION, FUNCTION: called}


def _make_choice(
    texts: Sequence[str],
    thoughts: Sequence[str],
    calls: Sequence[Body],
    reason: str,
    matched_stop: str | None,
) -> Body:
    text = "".join(texts)
    message: dict[str, object] = {"content": text, "reasoning_content": "".join(thoughts) or None}
    if calls:
        message |= {"content": text or None, "tool_calls": calls}
    finish_reason = "tool_calls" if calls and reason == "stop" else reason
    return {"message": message, "finish_reason": finish_reason, "matched_stop": matched_stop}
