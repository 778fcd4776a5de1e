"""Calls of chat completions by the official client, whole and streamed, and what they use."""

from typing import Any

import openai
import pytest

pytestmark = pytest.mark.acceptance


HELLO = [{"role": "user", "content": "Say hello."}]


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


ROME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
"""Its parameters bound every value, so that the arguments end with any model."""
ANSWER_SCHEMA = {
    "type": "object", "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["answer"], "additionalProperties": False,
}  # fmt: skip


def streamed(client: openai.OpenAI, **call: Any) -> dict[str, Any]:
    """Stream a call. Returns its choices as messages put together from their deltas."""
    messages: dict[int, dict[str, Any]] = {}
    numbers, roles, usage = [], 0, None
    for chunk in client.chat.completions.create(
        **call, stream=True, stream_options={"include_usage": True}
    ):
        assert chunk.object == "chat.completion.chunk"
        numbers.append(chunk.sequence_number)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            message = messages.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None}
            )
            assert message["finish"] is None, "nothing follows a finish"
            roles += choice.delta.role is not None
            message["content"] += choice.delta.content or ""
            message["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for piece in choice.delta.tool_calls or ():
                if piece.function.name is not None:
                    assert (piece.index, piece.type) == (len(message["calls"]), "function")
                    assert piece.function.arguments == ""
                    message["calls"].append([piece.id, piece.function.name, ""])
                message["calls"][piece.index][2] += piece.function.arguments
            message["finish"] = choice.finish_reason
    assert numbers == list(range(1, len(numbers) + 1))
    assert roles == len(messages), "the role comes once per choice"
    return {"choices": [messages[i] for i in sorted(messages)], "usage": usage}


def answered(client: openai.OpenAI, **call: Any) -> dict[str, Any]:
    """Send a call without streaming. Returns the same as `streamed`."""
    completion = client.chat.completions.create(**call)
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    choices = [
        {
            "content": choice.message.content or "",
            "reasoning": getattr(choice.message, "reasoning_content", None) or "",
            "calls": [
                [made.id, made.function.name, made.function.arguments]
                for made in choice.message.tool_calls or ()
            ],
            "finish": choice.finish_reason,
        }
        for choice in completion.choices
    ]
    return {"choices": choices, "usage": completion.usage}


def both(client: openai.OpenAI, **call: Any) -> dict[str, Any]:
    """Return the only choice, after a check that a stream and a whole answer agree.

    Both find the prompt in the prefix cache: bfloat16 would sum in another order otherwise.
    """
    answered(client, **call)
    one, other = answered(client, **call), streamed(client, **call)
    for result in (one, other):
        result["usage"] = result["usage"].completion_tokens
        for choice in result["choices"]:
            ids = [made.pop(0) for made in choice["calls"]]
            assert len(set(ids)) == len(ids)
            assert all(made.startswith("call_") for made in ids)
    assert one == other
    (choice,) = one["choices"]
    return choice
