"""Forms of a conversation: what a template refuses in one form, it may take in a simpler one.

A history is never a reason to refuse a request, but templates expect what their own model writes:
arguments of calls as objects or as text, one call per message, ids of nine characters, or users and
assistants in turn.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any

from completions.chat.prompt_text import join
from completions.chat.tools import ToolCall

Message = Mapping[str, Any]
Write = Callable[..., str]
"""Writes calls as text."""
_ID_LENGTH = 9
"""Of the ids of calls in Mistral's templates."""


def simplify(messages: Sequence[Message], write: Write) -> Iterator[Sequence[Message]]:
    """Yield the messages as they are, then in ever simpler forms."""
    yield messages
    if any(message.get("tool_calls") for message in messages):
        yield from _iter_argument_forms(messages)
        single = split_calls(messages)
        yield single
        yield from _iter_argument_forms(single)
    turns = merge_turns(write_calls_in_text(messages, write))
    yield turns
    yield merge_system(turns)


def _iter_argument_forms(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    yield convert_arguments(messages, _to_text)
    yield convert_arguments(messages, _to_object)


def convert_arguments(messages: Sequence[Message], convert: Callable[[Any], Any]) -> list[Message]:
    """Return the messages with other arguments of calls."""
    converted = []
    for message in messages:
        if calls := message.get("tool_calls"):
            functions = [
                {**call["function"], "arguments": convert(call["function"]["arguments"])}
                for call in calls
            ]
            pairs = zip(calls, functions, strict=True)
            calls = [{**call, "function": function} for call, function in pairs]
            message = {**message, "tool_calls": calls}
        converted.append(message)
    return converted


def _to_text(arguments: Mapping[str, object] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _to_object(arguments: Mapping[str, object] | str) -> Mapping[str, object]:
    return {"arguments": arguments} if isinstance(arguments, str) else arguments


def rename_calls(messages: Sequence[Message], make_id: Callable[[str, int], str]) -> list[Message]:
    """Return the messages with other ids of calls, made of the name and the number of each."""
    ids: dict[str, str] = {}
    renamed: list[Message] = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            new = make_id(call["function"]["name"], len(ids))
            calls.append({**call, "id": ids.setdefault(call["id"], new)})
        if calls:
            message = {**message, "tool_calls": calls}
        if answered := message.get("tool_call_id"):
            message = {**message, "tool_call_id": ids.get(answered, answered)}
        renamed.append(message)
    return renamed


def split_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with one call in each, its results behind it, and short ids."""
    split: list[Message] = []
    waiting: dict[str, list[Message]] = {}  # calls of one message, with results, by id
    for message in messages:
        calls = message.get("tool_calls")
        if message["role"] == "tool" and message.get("tool_call_id") in waiting:
            result = _shorten_id(message, "tool_call_id")
            waiting[message["tool_call_id"]].append(result)
            continue
        split += chain.from_iterable(waiting.values())
        waiting = {}
        for position, call in enumerate(calls or ()):
            text = message["content"] if position == 0 else ""
            one = {**message, "content": text, "tool_calls": [_shorten_id(call, "id")]}
            waiting.setdefault(call["id"], []).append(one)
        if not calls:
            split.append(_shorten_id(message, "tool_call_id"))
    return [*split, *chain.from_iterable(waiting.values())]


def _shorten_id(value: Mapping[str, Any], name: str) -> Mapping[str, object]:
    if not (id := value.get(name)):
        return value
    return {**value, name: sha256(id.encode()).hexdigest()[:_ID_LENGTH]}


def write_calls_in_text(messages: Sequence[Message], write: Write) -> list[Message]:
    """Return the messages with calls written into their texts."""
    plain: list[Message] = []
    for message in messages:
        texts = [message["content"]] if message.get("content") else []
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        if functions:
            texts.append(write(*(ToolCall(each["name"], each["arguments"]) for each in functions)))
        fields = {key: value for key, value in message.items() if key != "tool_calls"}
        plain.append({**fields, "content": join("\n", texts)})
    return plain


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Return a system message if there is one, then users and assistants in turn. A user says the
    results of tools, and what the system says later."""
    turns: list[tuple[str, list[str]]] = []
    for message in messages:
        role = message["role"]
        begins = not turns or turns[-1][0] == "system"
        if role == "tool" or (role == "system" and not begins):
            role = "user"
        if role == "assistant" and begins:
            turns.append(("user", []))
        if not turns or turns[-1][0] != role:
            turns.append((role, []))
        turns[-1][1].append(message["content"])
    return [{"role": role, "content": join("\n\n", filter(None, texts))} for role, texts in turns]


def merge_system(turns: Sequence[Message]) -> list[Message]:
    """Return the turns with the system's text in front of the first user's."""
    if not turns or turns[0]["role"] != "system":
        return list(turns)
    first = {"role": "user", "content": turns[0]["content"]}
    return merge_turns([first, *turns[1:]])
