"""Items of the Responses API, as requests and conversations bring them, and as chat messages.

As in a chat's messages, what an item has beside the fields that are read is ignored: clients send
back what they were answered. An item that no model here can read is refused by its type.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

from completions.chat.tools import CUSTOM, FUNCTION, INPUT
from completions.exceptions import FieldError
from completions.models.conversations import Item
from completions.requests.context import Context
from completions.requests.fields.base import SHOWN_NAME, ChoiceField, Field, TextField, expect
from completions.requests.fields.chat.messages import (
    ChatMessageField,
    ContentField,
    Message,
    ReasoningTextField,
)
from completions.requests.fields.chat.past_calls import link_calls
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import OpenObject
from completions.responses.compaction import COMPACTION, COMPACTION_PREFIX

_REFERENCE: Final = "item_reference"
_READ_CHAT_MESSAGE = ChatMessageField().read


class PartsField(Field[Any]):
    """Text, or an array of text parts. Read as a list of parts of the type `kind`."""

    def __init__(
        self, help: str, kind: str, text: ContentField | None = None, *, required: bool = True
    ) -> None:
        super().__init__(help, required=required)
        self._kind = kind
        self._text = text or ContentField()

    def to_schema(self) -> dict[str, object]:
        return self._text.to_schema()

    def read(self, data: object, context: Context | None = None) -> Any:
        parts = [data] if type(data) is str else expect(data, list, "a string or an array of parts")
        return [{"type": self._kind, "text": text} for text in self._text.read_parts(parts)]


class MessageItemObject(OpenObject[Item]):
    role = ChoiceField("Who speaks.", choices=["user", "system", "developer"], required=True)
    content = PartsField("A string, or parts of text.", "input_text")

    def check(self, values: Self) -> Item:
        return {
            "type": "message",
            "status": "completed",
            "role": values.role,
            "content": values.content,
        }


class AnswerItemObject(MessageItemObject):
    """What an assistant said."""

    role = ChoiceField("Who speaks.", choices=["assistant"], required=True)
    content = PartsField("A string, or parts of text.", "output_text")

    def check(self, values: Self) -> Item:
        parts = [{**part, "annotations": [], "logprobs": []} for part in values.content]
        return {**super().check(values), "content": parts}


class ReasoningItemObject(OpenObject[Item]):
    content = PartsField(
        "The reasoning as text.", "reasoning_text", ReasoningTextField(), required=False
    )

    def check(self, values: Self) -> Item:
        content = values.content or []
        return {"type": "reasoning", "status": "completed", "summary": [], "content": content}


class FunctionCallItemObject(OpenObject[Item]):
    call_id = TextField("The id that the output refers to.", required=True)
    name = TextField("The tool that was called.", required=True)
    arguments = TextField("A JSON object, as text.", default="")

    def check(self, values: Self) -> Item:
        return {"type": "function_call", "status": "completed", **values.list_values()}


class CustomCallItemObject(OpenObject[Item]):
    call_id = TextField("The id that the output refers to.", required=True)
    name = TextField("The tool that was called.", required=True)
    input = TextField("The text that it got.", default="")

    def check(self, values: Self) -> Item:
        return {"type": "custom_tool_call", "status": "completed", **values.list_values()}


class CallOutputItemObject(OpenObject[Item]):
    call_id = TextField("The call that it answers.", required=True)
    output = ContentField("What the tool returned: a string, or parts of text.", required=True)

    def check(self, values: Self) -> Item:
        return {"type": "function_call_output", "status": "completed", **values.list_values()}


class CustomOutputItemObject(CallOutputItemObject):
    def check(self, values: Self) -> Item:
        return {**super().check(values), "type": "custom_tool_call_output"}


class CompactionItemObject(OpenObject[Item]):
    """What POST /v1/responses/compact returned. Its content is opened with the whole body."""

    encrypted_content = TextField("What the item holds, as it was returned.", required=True)

    def check(self, values: Self) -> Item:
        return {"type": COMPACTION, **values.list_values()}


CALLS: Final = ("function_call", "custom_tool_call")
OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
"""The types of the items that are calls of tools, and those that answer them."""
_PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "cto_",
    COMPACTION: COMPACTION_PREFIX,
}
"""What the ids of items begin with, by type."""
_ANSWER = AnswerItemObject()
_BY_TYPE: Final[Mapping[str, OpenObject[Item]]] = {
    "message": MessageItemObject(),
    "reasoning": ReasoningItemObject(),
    "function_call": FunctionCallItemObject(),
    "function_call_output": CallOutputItemObject(),
    "custom_tool_call": CustomCallItemObject(),
    "custom_tool_call_output": CustomOutputItemObject(),
    COMPACTION: CompactionItemObject(),
}


class ItemField(Field[Item]):
    """An item, read as the object that clients see, without an id; or a reference to one that is
    stored."""

    def to_schema(self) -> dict[str, object]:
        objects = [("message", _ANSWER), *_BY_TYPE.items()]
        reference = {"type": {"const": _REFERENCE}, "id": {"type": "string"}}
        items = [_describe(kind, each) for kind, each in objects]
        return {"anyOf": [*items, {"type": "object", "properties": reference}]}

    def read(self, data: object, context: Context | None = None) -> Any:
        data = expect(data, dict, "an object")
        kind = data.get("type") or "message"
        if _is_reference(data):
            return _find_item(data.get("id"), context)
        if type(kind) is not str or kind not in _BY_TYPE:
            message = (
                f"{str(kind)[:SHOWN_NAME]!r} is no item that this server reads; leave it out, or "
                f"send one of: {', '.join(_BY_TYPE)}."
            )
            raise FieldError(message, "type", code="unsupported_value")
        is_answer = kind == "message" and data.get("role") == "assistant"
        return (_ANSWER if is_answer else _BY_TYPE[kind]).read(data, context)


def _is_reference(item: Mapping[str, object]) -> bool:
    """Whether an item of a body stands for a stored one: its type says so, or it has an id and no
    content."""
    return item.get("type") == _REFERENCE or (set(item) <= {"id", "type"} and "id" in item)


def _describe(kind: str, item: OpenObject[Item]) -> dict[str, Any]:
    schema = item.to_schema()
    return {**schema, "properties": {"type": {"const": kind}, **schema["properties"]}}


def _find_item(item_id: object, context: Context | None) -> Item:
    item = context.earlier.by_id.get(str(item_id)) if context is not None else None
    if item is None:
        message = "no stored item of your organization has this id; send the item itself."
        raise FieldError(message, "id", code="item_not_found")
    return {name: value for name, value in item.items() if name != "id"}


def list_references(data: object) -> list[str]:
    """Return the ids that items of a body refer to, before the body is checked."""
    items = data if type(data) is list else []
    return [
        item["id"]
        for item in items
        if type(item) is dict and type(item.get("id")) is str and _is_reference(item)
    ]


class ItemsField(ListField[Any]):
    """Items; or a text, which is a user's message."""

    def to_schema(self) -> dict[str, object]:
        return {"anyOf": [super().to_schema(), {"type": "string"}]}

    def read(self, data: object, context: Context | None = None) -> Any:
        if type(data) is str:
            return [_BY_TYPE["message"].read({"role": "user", "content": data}, context)]
        return super().read(data, context)

    def list_ignored(self, data: object) -> Iterator[str]:
        return iter(())  # as `ItemField` does


def number_items(items: Sequence[Item], make_id: Callable[[str, int], str]) -> list[Item]:
    """Return the items with ids. `make_id` makes one from a prefix and a position."""
    return [
        {"id": make_id(_PREFIXES[item["type"]], index), **item} for index, item in enumerate(items)
    ]


# Items as messages of a chat ---------------------------------------------------------------------


def make_messages(items: Iterable[Item]) -> list[Message]:
    """Return the messages of a chat, as its templates read them. Reasoning and calls belong to the
    assistant's message that they precede or follow."""
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item["type"]
        if kind == "reasoning" and not item["content"]:
            continue  # a summary alone, as other servers write
        if kind in OUTPUTS:
            output = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            messages.append(output)
        elif kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": item["content"]})
        else:
            _add_to_answer(_find_answer(messages, kind), item)
    return link_calls(_READ_CHAT_MESSAGE(message) for message in messages)


def _find_answer(messages: list[dict[str, object]], kind: str) -> dict[str, Any]:
    """Return the assistant's message that an item belongs to: the last one, or a new one."""
    last = messages[-1] if messages else {}
    said = {"message": ("content",), "reasoning": ("content", "tool_calls")}.get(kind, ())
    if last.get("role") != "assistant" or any(name in last for name in said):
        messages.append({"role": "assistant"})
    return messages[-1]


def _add_to_answer(answer: dict[str, Any], item: Item) -> None:
    if item["type"] == "message":
        answer["content"] = item["content"]
    elif item["type"] == "reasoning":
        text = "".join(part["text"] for part in item["content"])
        answer["reasoning_content"] = answer.get("reasoning_content", "") + text
    else:
        kind, text = (CUSTOM, INPUT) if "input" in item else (FUNCTION, "arguments")
        call = {"id": item["call_id"], kind: {"name": item["name"], text: item[text]}}
        answer.setdefault("tool_calls", []).append(call)
