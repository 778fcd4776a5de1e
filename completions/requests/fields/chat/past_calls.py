"""Tool calls in the messages of a conversation, as clients send them back."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from completions.chat.tools import INPUT
from completions.contract import strict_json
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import Field, TextField
from completions.requests.fields.objects import OpenObject


class ArgumentsField(Field[dict[str, object] | str | None]):
    """The arguments of a past call: a dict if they are one JSON object, else the text as it is.

    Nothing is refused: a model writes calls that `max_tokens` cuts off, and repeats keys.
    """

    accepts = {"anyOf": [{"type": "string"}, {"type": "object"}]}

    def read(self, data: object, context: Context | None = None) -> dict[str, object] | str:
        if type(data) is dict:
            return data
        if type(data) is not str:
            return json.dumps(data, ensure_ascii=False)
        try:
            value = strict_json.loads(data.strip() or "{}")
            json.dumps(value, allow_nan=False)  # refuses 1e999
        except ValueError:
            return data
        return value if type(value) is dict else data


class CalledFunctionObject(OpenObject[dict[str, object] | None]):
    name = TextField("The tool that was called.", default="")
    arguments = ArgumentsField("A JSON object, as text; any other text stays a text.")

    def check(self, values: Self) -> object:
        arguments = values.arguments
        return {"name": values.name, "arguments": {} if arguments is None else arguments}


class CustomCallObject(OpenObject[dict[str, object] | None]):
    """A call of a custom tool. Read as a called function, as models see it."""

    name = TextField("The tool that was called.", default="")
    input = TextField("The text that it got.", default="")

    def check(self, values: Self) -> object:
        return {"name": values.name, "arguments": {INPUT: values.input}}


class ToolCallObject(OpenObject[dict[str, object]]):
    id = TextField("The id that the tool's message refers to; default: in the order of messages.")
    type = TextField("The kind of tool.")
    function = CalledFunctionObject("Name and arguments.")
    custom = CustomCallObject("Name and input of a custom tool.")

    def check(self, values: Self) -> dict[str, Any]:
        called = values.function or values.custom
        if called is None:
            message = "this field is required."
            raise FieldError(message, "function", code="missing_required_parameter")
        call = {"type": "function", "function": called}
        return {"id": values.id, **call} if values.id else call


def link_calls(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, object]]:
    """Return the messages with an id for each call and each result that has none. Such a result
    answers the first call that no other one answers."""
    linked: list[Mapping[str, object]] = []
    waiting: dict[str, None] = {}  # ids of calls, in their order
    for index, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            calls = [
                {"id": f"call_{index}_{position}", **call} for position, call in enumerate(calls)
            ]
            message, waiting = (
                {**message, "tool_calls": calls},
                {each["id"]: None for each in calls},
            )
        elif message["role"] == "tool":
            call_id = message.get("tool_call_id") or next(iter(waiting), f"call_{index}")
            message = {**message, "tool_call_id": call_id}
            waiting.pop(call_id, None)
        linked.append(message)
    return linked
