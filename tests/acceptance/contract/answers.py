"""Sends a call in each of its forms, and brings the answers into one form for comparison."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ROUTES = (COMPLETIONS, CHAT)
_NOT_COMPARED = (
    "meta_info", "hidden_states", "tool_calls", "logprobs", "refusal", "role", "sampling_support",
    "score", "prompt_logprobs",
)  # fmt: skip
"""Keys of choices that rounding, or what is cached, may change, or that are compared apart."""
_JOINED = ("text", "reasoning_content", "reasoning", "token_ids", "token_mask")
_CHANGING = (
    "id", "created", "meta", "sequence_number", "obfuscation", "object", "metadata", "rid",
    "usage", "sglext",
)  # fmt: skip
"""Keys that differ between calls. The last two depend on what is cached at the time."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a row's body is sent."""

    route: str
    stream: bool = False
    n: int = 1
    prompts: int = 1

    def __str__(self) -> str:
        parts = [self.route.removeprefix("/v1/"), *(["stream"] if self.stream else [])]
        parts += [f"n={self.n}"] if self.n > 1 else []
        return " ".join(parts + ([f"prompts={self.prompts}"] if self.prompts > 1 else []))

    @property
    def choices(self) -> int:
        return self.n * self.prompts


def forms(route: str) -> list[Form]:
    """One choice, n choices and several prompts, each with and without streaming."""
    shapes = [{}, {"n": 2}, *([{"prompts": 2}] if route == COMPLETIONS else [])]
    return [Form(route, stream, **shape) for shape in shapes for stream in (False, True)]


@dataclass(slots=True)
class Answer:
    """`body` is an answer without its choices; that of a stream is put together from its chunks."""

    form: Form
    status: int
    headers: Mapping[str, str]
    raw: str
    body: dict[str, Any] = field(default_factory=dict)
    choices: list[dict[str, Any]] = field(default_factory=list)
    """In chat, `text` is the message's content; its other keys are beside `text`."""
    chunks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)["error"]
        return found

    @property
    def texts(self) -> list[str]:
        return [choice["text"] for choice in self.choices]

    @property
    def usage(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["usage"]
        return found

    def each(self, name: str) -> list[Any]:
        """Return this key of every choice. Raises KeyError if one lacks it."""
        return [choice[name] for choice in self.choices]


def fold(form: Form, response: httpx.Response) -> Answer:
    answer = Answer(form, response.status_code, response.headers, response.text)
    if response.status_code != 200:
        return answer
    if not form.stream:
        whole = response.json()
        answer.body = {name: value for name, value in whole.items() if name != "choices"}
        answer.choices = [_whole(choice) for choice in whole["choices"]]
        return answer
    *frames, done, last = response.text.split("\n\n")
    assert (done, last) == ("data: [DONE]", ""), response.text
    answer.chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    choices: dict[int, dict[str, Any]] = {}
    for chunk in answer.chunks:
        assert len(chunk["choices"]) <= 1, chunk
        for piece in chunk["choices"]:
            _add(choices.setdefault(piece["index"], {"index": piece["index"], "text": ""}), piece)
        fields = {name: value for name, value in chunk.items() if name != "choices"}
        answer.body |= {name: value for name, value in fields.items() if value is not None}
    answer.choices = [choices[index] for index in sorted(choices)]
    return answer


def _whole(choice: dict[str, Any]) -> dict[str, Any]:
    if "message" not in choice:
        return choice
    message = {name: value for name, value in choice["message"].items() if value is not None}
    rest = {name: value for name, value in choice.items() if name != "message"}
    return {**rest, "text": message.pop("content", ""), **message}


def _add(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add a choice of a chunk to what earlier chunks gave."""
    gained = dict(piece)
    gained |= gained.pop("delta", {})
    gained["text"] = gained.pop("content", None) or gained.get("text") or ""
    for call in gained.pop("tool_calls", ()):
        _add_call(choice.setdefault("tool_calls", []), call)
    for name, value in gained.items():
        if name in _JOINED and value is not None:
            choice[name] = choice.get(name, type(value)()) + value
        elif name == "sampling_support":
            choice[name] = _join_support(choice.get(name), value)
        elif name == "logprobs" and value is not None:
            joined = choice.get(name) or {key: [] for key in value}
            choice[name] = {key: joined[key] + (part or []) for key, part in value.items()}
        elif value is not None or name not in choice:
            choice[name] = value


def _join_support(before: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    if before is None:
        return more
    ids = b"".join(b64decode(part["ids"]) for part in (before, more))
    joined = {name: before[name] + more[name] for name in ("counts", "log_mass")}
    return {**joined, "ids": b64encode(ids).decode()}


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    function = piece["function"]
    if piece["index"] == len(calls):
        calls.append({"id": piece["id"], "type": piece["type"], "function": {**function}})
    else:
        calls[piece["index"]]["function"]["arguments"] += function["arguments"]


def settled(answer: Answer) -> dict[str, Any]:
    """Return what a stream and a whole answer of the same call have in common."""
    body = {
        name: value
        for name, value in answer.body.items()
        if name not in _CHANGING and value is not None
    }
    counted = {name: answer.usage[name] for name in ("prompt_tokens", "completion_tokens")}
    return {**body, **counted, "choices": [_settled_choice(choice) for choice in answer.choices]}


def _settled_choice(choice: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in choice.items()
        if name not in _NOT_COMPARED and value is not None
    }
    calls = choice.get("tool_calls") or []
    return {**kept, "tool_calls": [call["function"] for call in calls]}
