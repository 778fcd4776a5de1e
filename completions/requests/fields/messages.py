"""The field `messages` of a chat completion: who says what, and which calls are answered."""

from collections.abc import Mapping, Sequence
from typing import Any

from completions.contract import strict_json
from completions.exceptions import FieldError
from completions.requests.fields.base import (
    ChoiceField,
    Field,
    ListField,
    ObjectField,
    TextField,
    expect,
    read_each,
)
from completions.requests.fields.objects import StrictObject, Values
from completions.requests.fields.tokens import token_ids

TOOL_NAME = r"[A-Za-z0-9_-]{1,64}"
NOTES = "provider_specific_fields"
"""What LiteLLM adds to an answer that it sends back."""
Message = Mapping[str, Any]
"""A message as chat templates read it."""


class ContentField(Field):
    """A message's text: a string, or an array of {"type": "text", "text": ...} that are joined."""

    def to_schema(self) -> dict[str, Any]:
        part = {
            "type": "object",
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}

    def read(self, data: Any, model: Any = None) -> str:
        if type(data) is str:
            return data
        expect(data, list, "a string or an array of text parts")
        return "".join(read_each(data, self._text))

    def _text(self, part: Any) -> str:
        if type(part) is dict and part.get("type", "text") != "text":
            message = "this model reads text parts only; leave out all others."
            raise FieldError(message, "type", code="unsupported_content_type")
        if type(part) is dict and part.keys() == {"type", "text"} and type(part["text"]) is str:
            text: str = part["text"]
            return text
        raise FieldError('must be {"type": "text", "text": a string}.')


class ArgumentsField(Field):
    """A call's arguments: a JSON object, usually as text. Read as an object."""

    accepts = {"anyOf": [{"type": "string"}, {"type": "object"}]}

    def read(self, data: Any, model: Any = None) -> dict[str, Any]:
        if type(data) is str:
            try:
                data = strict_json.loads(data or "{}")
            except strict_json.StrictJSONError as error:
                raise FieldError(f"is not JSON: {error.reason}.") from error
        expect(data, dict, "a JSON object, as text")
        return dict(data)


class CalledFunctionObject(StrictObject):
    name = TextField("The tool that was called.", pattern=TOOL_NAME, required=True)
    arguments = ArgumentsField("A JSON object, as text.", required=True)


class ToolCallObject(StrictObject):
    id = TextField("The id that the tool's message refers to.", max_length=128, required=True)
    type = ChoiceField("The only type.", choices=["function"], default="function")
    function = CalledFunctionObject("Name and arguments.", required=True)


class ChatMessageObject(StrictObject):
    """Read as a Message: `content`, and the other fields if given. `developer` means `system`."""

    unsupported = dict.fromkeys(
        ("refusal", "audio", "function_call", "annotations", "images", "thinking_blocks"),
        "Omit it.",
    )

    role = ChoiceField(
        "Who speaks.", choices=["system", "developer", "user", "assistant", "tool"], default="user"
    )
    content = ContentField("A string, or text parts that are joined.")
    name = TextField("The participant's name.", max_length=64)
    tool_calls = ListField("Calls that an assistant made.", child=ToolCallObject())
    tool_call_id = TextField("In a tool's message: the call that it answers.", max_length=128)
    reasoning_content = TextField("An assistant's earlier thoughts, if its template shows them.")
    provider_specific_fields = ObjectField(
        "LiteLLM's notes in an answer that it sends back; no effect."
    )

    def check(self, values: Values) -> Message:
        role = values["role"]
        for name, of_role in (
            ("tool_calls", "assistant"),
            ("reasoning_content", "assistant"),
            ("tool_call_id", "tool"),
        ):
            if values[name] is not None and role != of_role:
                raise FieldError(f"needs role {of_role}, not {role}.", name)
        if role == "tool" and values["tool_call_id"] is None:
            message = "this field is required with role tool."
            raise FieldError(message, "tool_call_id", code="missing_required_parameter")
        if values["content"] is None and not values["tool_calls"]:
            raise FieldError(
                "this field is required.", "content", code="missing_required_parameter"
            )
        given = {name: value for name, value in values.items() if value is not None}
        given.pop(NOTES, None)
        role = "system" if role == "developer" else role
        return {**given, "role": role, "content": values["content"]}


class MessagesField(ListField):
    """Messages; or, as in mistral.rs, one text without a template, read as token ids."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [super().to_schema(), {"type": "string"}]}

    def read(self, data: Any, model: Any = None) -> Any:
        if type(data) is str:
            return token_ids(model, data)
        if type(data) is list and len(data) > model.max_model_len:  # each takes at least one token
            message = (
                f"has {len(data)} messages; the model's context of {model.max_model_len} tokens "
                "cannot hold them."
            )
            raise FieldError(message, code="context_length_exceeded")
        return super().read(data, model)


def check_answers(messages: Sequence[Message]) -> None:
    """Raise FieldError unless tools' messages answer calls of the assistant just before them."""
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] != "tool":
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
        elif message["tool_call_id"] not in open_calls:
            raise FieldError(
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
