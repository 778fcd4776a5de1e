"""The field `messages` of a chat completion: who says what.

Clients send back what they were answered, here or elsewhere, with everything that their library or
a proxy adds. A history is therefore never a reason to refuse a request: what has no meaning here is
ignored, and `x-ignored-params` names it. Refused is what cannot be understood as a message.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Self

from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    SHOWN_NAME,
    ChoiceField,
    Field,
    TextField,
    expect,
    get_files,
    read_each,
)
from completions.requests.fields.chat.past_calls import (
    CalledFunctionObject,
    ToolCallObject,
    link_calls,
)
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import OpenObject, quote_key
from completions.requests.fields.tokens import encode_text, make_context_error

MAX_NAMED = 16
"""The most ignored fields of messages that the header names."""
_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The key of a part that holds its text, by the part's type."""
_UNREAD_PARTS = (
    "thinking", "redacted_thinking", "reasoning", "reasoning_text", "tool_use", "function_call",
)  # fmt: skip
"""Parts that clients keep in an answer's content. `tool_calls` repeats the calls among them."""
Message = Mapping[str, object]
"""A message as chat templates read it."""


class ContentField(Field[str | None]):
    """A message's text: a string, or an array of parts that are joined."""

    text_keys: Mapping[str, str] = _TEXT_KEYS

    def to_schema(self) -> dict[str, object]:
        part = {
            "type": "object",
            "properties": {
                "type": {"enum": [*self.text_keys]},
                **{key: {"type": "string"} for key in self.text_keys.values()},
            },
        }
        parts = {"type": "array", "items": {"anyOf": [part, {"type": "string"}]}}
        return {"anyOf": [{"type": "string"}, parts]}

    def read(self, data: object, context: Context | None = None) -> str:
        if type(data) is str:
            return data
        return "".join(self.read_parts(expect(data, list, "a string or an array of text parts")))

    def read_parts(self, parts: list[object]) -> list[str]:
        """Return the text of each part."""
        return read_each(parts, self._parse_part)

    def list_ignored(self, data: object) -> Iterator[str]:
        parts = enumerate(data) if type(data) is list else ()
        for index, part in parts:
            if type(part) is not dict:
                continue
            kind = part.get("type") or "text"
            if kind not in self.text_keys:
                yield f"[{index}]"
                continue
            for name, value in part.items():
                if name not in ("type", self.text_keys[kind]) and value not in (None, [], {}):
                    yield f"[{index}].{quote_key(name)}"

    def _parse_part(self, part: object) -> str:
        if type(part) is str:
            return part
        part = expect(part, dict, "a text part or a string")
        kind = part.get("type") or "text"
        kind = expect(kind, str, "a string", "type")
        if kind not in self.text_keys and kind in _UNREAD_PARTS:
            return ""
        if kind not in self.text_keys:
            message = f"this model reads text only; leave out parts of type {kind[:SHOWN_NAME]!r}."
            raise FieldError(message, "type", code="unsupported_content_type")
        key = self.text_keys[kind]
        if key not in part:
            message = "this field is required."
            raise FieldError(message, key, code="missing_required_parameter")
        text = part[key]
        if text is not None:
            text = expect(text, str, "a string", key)
        return text or ""


class ReasoningTextField(ContentField):
    """The text of reasoning, as ContentField reads a message's."""

    text_keys = {**_TEXT_KEYS, "reasoning_text": "text"}


class MessageObject(OpenObject[object]):
    """The fields of all messages. Read as a Message."""

    role = ChoiceField(
        "Who speaks.",
        choices=["system", "developer", "user", "assistant", "tool", "function"],
        default="user",
    )
    content = ContentField("A string, or text parts that are joined; null is an empty text.")
    name = TextField("The participant's name.")

    def check(self, values: Self) -> Message:
        return _make_message(values.list_values())


def _make_message(values: Mapping[str, object]) -> dict[str, object]:
    fields = {name: value for name, value in values.items() if value is not None}
    return {**fields, "content": values["content"] or ""}


class PromptMessageObject(MessageObject):
    """What an operator or a user says. `developer` means `system`."""

    def read(self, data: object, context: Context | None = None) -> Message:
        message: Message = super().read(data, context)
        if type(data) is dict and "content" not in data:
            text = "this field is required."
            raise FieldError(text, "content", code="missing_required_parameter")
        return message

    def check(self, values: Self) -> Message:
        role = "system" if values.role == "developer" else values.role
        return _make_message({**values.list_values(), "role": role})


class PastReasoningField(Field[str | None]):
    """Text. Any other value has no effect: a history is never refused."""

    accepts = {"type": "string"}

    def read(self, data: object, context: Context | None = None) -> str | None:
        return data if type(data) is str else None

    def list_ignored(self, data: object) -> Iterator[str]:
        if data is not None and type(data) is not str:
            yield ""


class AnswerObject(MessageObject):
    """What an assistant said."""

    refusal = TextField("The text of an answer that refuses, if it has no content.")
    tool_calls = ListField("Calls that an assistant made.", child=ToolCallObject())
    function_call = CalledFunctionObject("The only call, in the older form.")
    reasoning_content = TextField("An assistant's earlier reasoning, if its template shows them.")
    reasoning = PastReasoningField("The same as reasoning_content.")

    def check(self, values: Self) -> Message:
        calls = values.tool_calls or []
        if not calls and values.function_call is not None:
            calls = [{"type": "function", "function": values.function_call}]
        reasoning = values.reasoning_content
        if reasoning is None:
            reasoning = values.reasoning or None
        unsaid = dict.fromkeys(("refusal", "function_call", "reasoning"))
        message = _make_message({**values.list_values(), **unsaid, "reasoning_content": reasoning})
        message["content"] = values.content or values.refusal or ("" if not calls else None)
        if not calls:
            message.pop("tool_calls", None)
            return message
        return {**message, "tool_calls": calls}


class ResultObject(MessageObject):
    """What a tool returned. `function` is the older name of the role."""

    tool_call_id = TextField("The call that it answers.")

    def check(self, values: Self) -> Message:
        return _make_message({**values.list_values(), "role": "tool"})


_PROMPT, _ANSWER, _RESULT = PromptMessageObject(), AnswerObject(), ResultObject()
_BY_ROLE: Mapping[object, MessageObject] = {
    "assistant": _ANSWER,
    "tool": _RESULT,
    "function": _RESULT,
}


class ChatMessageField(Field[object]):
    """A message with the fields of its role."""

    def to_schema(self) -> dict[str, object]:
        fields = {**_PROMPT.fields, **_ANSWER.fields, **_RESULT.fields}
        return {
            "type": "object",
            "properties": {name: field.describe() for name, field in fields.items()},
            "additionalProperties": True,
        }

    def read(self, data: object, context: Context | None = None) -> Message:
        data = expect(data, dict, "an object")
        message: Message = _choose_object(data).read(data, context)
        return message

    def list_ignored(self, data: Any) -> Iterator[str]:
        return _choose_object(data).list_ignored(data)


def _choose_object(data: Mapping[str, object]) -> MessageObject:
    role = data.get("role")
    return _BY_ROLE.get(role, _PROMPT) if type(role) is str else _PROMPT


class MessagesField(ListField[Any]):
    """Messages; or, as in mistral.rs, one text without a template, read as token ids."""

    def to_schema(self) -> dict[str, object]:
        return {"anyOf": [super().to_schema(), {"type": "string"}]}

    def read(self, data: object, context: Context | None = None) -> Any:
        if type(data) is str:
            return encode_text(get_files(context), data)
        return link_calls(self.read_all(data, context))

    def read_all(self, data: object, context: Context | None) -> Any:
        """Return each message. Raises FieldError, before any is read if there are too many."""
        longest = get_files(context).max_model_len
        if type(data) is list and len(data) > longest:
            raise make_context_error(
                longest,
                f"you sent {len(data)} messages, and each takes at least 1 token. Please reduce "
                "the length of the messages.",
            )
        return super().read(data, context)

    def list_ignored_paths(self, data: object) -> list[str]:
        """Return paths of what was ignored in the messages of a body, up to MAX_NAMED of them."""
        if type(data) is not list:
            return []
        paths = list(islice(self.list_ignored(data), MAX_NAMED + 1))
        names = [f"messages{path}" for path in paths[:MAX_NAMED]]
        return [*names, *(["..."] if len(paths) > MAX_NAMED else [])]
