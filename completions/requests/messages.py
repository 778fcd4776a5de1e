"""The field `messages` of a chat completion: who says what, and which calls are answered."""

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from completions.contract import strict_json
from completions.errors import FieldError
from completions.requests.fields import (
    ChoiceField,
    ContentField,
    ListField,
    ObjectField,
    StrictField,
    StrictSerializer,
    TextField,
    expect,
)

TOOL_NAME = r"[A-Za-z0-9_-]{1,64}"
NOTES = "provider_specific_fields"
_OF_ASSISTANT = ("tool_calls", "reasoning_content")


class ArgumentsField(StrictField, serializers.JSONField):
    """A call's arguments: a JSON object, usually as text."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "object"}]}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if type(data) is str:
            try:
                data = strict_json.loads(data or "{}")
            except strict_json.StrictJSONError as error:
                raise FieldError("invalid_value", f"does not hold JSON: {error.reason}.") from error
        expect(data, dict, "a JSON object, as text")
        return dict(data)


class CalledFunctionSerializer(StrictSerializer):
    name = TextField(pattern=TOOL_NAME, help_text="The tool that was called.")
    arguments = ArgumentsField(help_text="A JSON object, as text.")


class ToolCallSerializer(StrictSerializer):
    id = TextField(max_length=128, help_text="What the tool's message refers to.")
    type = ChoiceField(choices=["function"], default="function", help_text="The only type.")
    function = CalledFunctionSerializer(help_text="Name and arguments.")


class ChatMessageSerializer(StrictSerializer):
    """One message. `developer` is another name of `system`."""

    later_fields = dict.fromkeys(
        ("refusal", "audio", "function_call", "annotations", "images", "thinking_blocks"),
        "Omit it.",
    )

    role = ChoiceField(
        choices=["system", "developer", "user", "assistant", "tool"], default="user",
        help_text="Who speaks.",
    )  # fmt: skip
    content = ContentField(required=False, help_text="A string, or text parts that are joined.")
    name = TextField(required=False, max_length=64, help_text="Of the participant.")
    tool_calls = ListField(
        child=ToolCallSerializer(), required=False, help_text="Calls that an assistant made."
    )
    tool_call_id = TextField(
        required=False, max_length=128, help_text="Of a tool's message: the call that it answers."
    )
    reasoning_content = TextField(
        required=False, help_text="An assistant's earlier thoughts, if its template shows them."
    )
    provider_specific_fields = ObjectField(
        required=False, help_text="What LiteLLM notes of an answer that it sends back; no effect."
    )

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        role = validated["role"]
        for name in _OF_ASSISTANT:
            if validated[name] is not None and role != "assistant":
                raise FieldError("invalid_value", "goes with role assistant only.", name)
        if validated["tool_call_id"] is not None and role != "tool":
            raise FieldError("invalid_value", "goes with role tool only.", "tool_call_id")
        if role == "tool" and validated["tool_call_id"] is None:
            message = "this field is required with role tool."
            raise FieldError("missing_required_parameter", message, "tool_call_id")
        if validated["content"] is None and not validated["tool_calls"]:
            raise FieldError("missing_required_parameter", "this field is required.", "content")
        return validated


def check_answers(messages: Sequence[dict[str, Any]]) -> None:
    """Raise FieldError unless tools' messages answer calls of the assistant just before them."""
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] != "tool":
            open_calls = {call["id"] for call in message["tool_calls"] or ()}
        elif message["tool_call_id"] not in open_calls:
            raise FieldError(
                "invalid_value",
                "answers no call, or one that is answered already, of the assistant's message "
                "before it.",
                f"messages[{index}].tool_call_id",
            )
        else:
            open_calls.discard(message["tool_call_id"])


def for_template(message: dict[str, Any]) -> dict[str, Any]:
    """A validated message as chat templates read it: `content` always, the rest where given."""
    given = {key: value for key, value in message.items() if value is not None and key != NOTES}
    role = "system" if message["role"] == "developer" else message["role"]
    return {**given, "role": role, "content": message["content"]}
