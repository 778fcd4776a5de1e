"""The field `messages` of a chat completion: who says what, and which calls are answered."""

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.contract import strict_json
from completions.errors import FieldError
from completions.requests.fields.base import (
    ChoiceField,
    ListField,
    ObjectField,
    StrictField,
    TextField,
    expect,
    read_each,
)
from completions.requests.fields.objects import StrictSerializer, Values
from completions.requests.fields.tokens import token_ids

TOOL_NAME = r"[A-Za-z0-9_-]{1,64}"
NOTES = "provider_specific_fields"
"""What LiteLLM adds to an answer that it sends back."""
Message = Mapping[str, Any]
"""A message as chat templates read it."""


class ContentField(StrictField, serializers.JSONField):
    """A message's text: a string, or an array of {"type": "text", "text": ...} that are joined."""

    def to_schema(self) -> dict[str, Any]:
        part = {
            "type": "object",
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}

    def to_internal_value(self, data: Any) -> str:
        if type(data) is str:
            return data
        expect(data, list, "a string or an array of text parts")
        return "".join(read_each(data, self._text))

    def _text(self, part: Any) -> str:
        if type(part) is dict and part.get("type", "text") != "text":
            message = "this model reads text parts only; leave out all others."
            raise FieldError("unsupported_content_type", message, "type")
        if type(part) is dict and part.keys() == {"type", "text"} and type(part["text"]) is str:
            text: str = part["text"]
            return text
        raise FieldError("invalid_value", 'must be {"type": "text", "text": a string}.')


class ArgumentsField(StrictField, serializers.JSONField):
    """A call's arguments: a JSON object, usually as text. Read as an object."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "object"}]}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if type(data) is str:
            try:
                data = strict_json.loads(data or "{}")
            except strict_json.StrictJSONError as error:
                raise FieldError("invalid_value", f"is not JSON: {error.reason}.") from error
        expect(data, dict, "a JSON object, as text")
        return dict(data)


class CalledFunctionSerializer(StrictSerializer):
    name = TextField(pattern=TOOL_NAME, help_text="The tool that was called.")
    arguments = ArgumentsField(help_text="A JSON object, as text.")


class ToolCallSerializer(StrictSerializer):
    id = TextField(max_length=128, help_text="The id that the tool's message refers to.")
    type = ChoiceField(choices=["function"], default="function", help_text="The only type.")
    function = CalledFunctionSerializer(help_text="Name and arguments.")


class ChatMessageSerializer(StrictSerializer):
    """Read as a Message: `content` always, the other fields where they are given. `developer` is
    another name of `system`."""

    unsupported = dict.fromkeys(
        ("refusal", "audio", "function_call", "annotations", "images", "thinking_blocks"),
        "Omit it.",
    )

    role = ChoiceField(
        choices=["system", "developer", "user", "assistant", "tool"], default="user",
        help_text="Who speaks.",
    )  # fmt: skip
    content = ContentField(required=False, help_text="A string, or text parts that are joined.")
    name = TextField(required=False, max_length=64, help_text="The participant's name.")
    tool_calls = ListField(
        child=ToolCallSerializer(), required=False, help_text="Calls that an assistant made."
    )
    tool_call_id = TextField(
        required=False, max_length=128, help_text="In a tool's message: the call that it answers."
    )
    reasoning_content = TextField(
        required=False, help_text="An assistant's earlier thoughts, if its template shows them."
    )
    provider_specific_fields = ObjectField(
        required=False, help_text="LiteLLM's notes in an answer that it sends back; no effect."
    )

    def check(self, values: Values) -> Message:
        role = values["role"]
        for name, of_role in (
            ("tool_calls", "assistant"),
            ("reasoning_content", "assistant"),
            ("tool_call_id", "tool"),
        ):
            if values[name] is not None and role != of_role:
                message = f"needs role {of_role}, not {role}."
                raise FieldError("invalid_value", message, name)
        if role == "tool" and values["tool_call_id"] is None:
            message = "this field is required with role tool."
            raise FieldError("missing_required_parameter", message, "tool_call_id")
        if values["content"] is None and not values["tool_calls"]:
            raise FieldError("missing_required_parameter", "this field is required.", "content")
        given = {name: value for name, value in values.items() if value is not None}
        given.pop(NOTES, None)
        role = "system" if role == "developer" else role
        return {**given, "role": role, "content": values["content"]}


class MessagesField(ListField):
    """Messages; or, as in mistral.rs, one text, which no template is applied to and which is read
    as token ids."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [super().to_schema(), {"type": "string"}]}

    def to_internal_value(self, data: Any) -> Any:
        return data if type(data) is str else super().to_internal_value(data)

    def for_model(self, value: str | list[Message], model: ModelFiles) -> Sequence[Any]:
        return token_ids(model, value) if isinstance(value, str) else value


def check_message_count(count: int, max_model_len: int) -> None:
    """Raise FieldError for more messages than fit: each takes at least one token."""
    if count > max_model_len:
        message = (
            f"has {count} messages; the model's context of {max_model_len} tokens cannot hold them."
        )
        raise FieldError("context_length_exceeded", message)


def check_answers(messages: Sequence[Message]) -> None:
    """Raise FieldError unless tools' messages answer calls of the assistant just before them."""
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] != "tool":
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
        elif message["tool_call_id"] not in open_calls:
            raise FieldError(
                "invalid_value",
                "must be the id of a call in the assistant's message before it that no other "
                "message answers.",
                f"messages[{index}].tool_call_id",
            )
        else:
            open_calls.discard(message["tool_call_id"])


def paths_of_notes(messages: Any, most: int) -> list[str]:
    """Paths of up to `most` notes in the `messages` of a body."""
    given = messages if type(messages) is list else ()
    noted = [i for i, each in enumerate(given) if type(each) is dict and each.get(NOTES)]
    return [f"messages[{i}].{NOTES}" for i in noted[:most]]
