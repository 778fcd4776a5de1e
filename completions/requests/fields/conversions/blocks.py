"""Fields of Anthropic's Messages API: content blocks and turns, read as messages of a chat.

As in a chat's messages, a history is no reason to refuse a request: what a block has beside the
fields that are read is ignored, and `x-ignored-params` names it. A block that no model here can
read is refused by its type.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from completions.chat.reasoning import AUTO as BY_TEMPLATE
from completions.chat.reasoning import DISABLED, ENABLED
from completions.chat.tools import AUTO, CUSTOM, NONE, REQUIRED, Tool, ToolChoice
from completions.requests.context import Context
from completions.requests.conversation import Thinking
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    IntegerField,
    ObjectField,
    StorableObjectField,
    TextField,
    expect,
)
from completions.requests.fields.chat.messages import ContentField, Message, MessagesField
from completions.requests.fields.chat.tools import TOOL_NAME, FunctionObject
from completions.requests.fields.conversions.response_fields import HOSTED, check_fields
from completions.requests.fields.conversions.typed_objects import TypedObjectField
from completions.requests.fields.ignored import UnusedField
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import OpenObject, StrictObject

_NO_SUMMARY: Final = (
    "Only summarized, which has no effect: the blocks have the thoughts themselves."
)


class TextBlockObject(OpenObject[Message]):
    text = TextField("The text.", required=True)

    def check(self, values: Self) -> Message:
        return {"content": values.text}


class ThinkingBlockObject(OpenObject[Message]):
    thinking = TextField("What the model thought.", required=True)
    signature = TextField("Not checked.")

    def check(self, values: Self) -> Message:
        return {"reasoning_content": values.thinking}


class RedactedBlockObject(OpenObject[Message]):
    """Thoughts that only another server can read: they are left out."""

    def check(self, values: Self) -> Message:
        return {}

    def list_ignored(self, data: object) -> Iterator[str]:
        yield ""


class ToolUseBlockObject(OpenObject[Message]):
    id = TextField("The id that the result refers to.", required=True)
    name = TextField("The tool that was called.", required=True)
    input = ObjectField("Its arguments.", required=True)

    def check(self, values: Self) -> Message:
        called = {"name": values.name, "arguments": values.input}
        return {"tool_calls": [{"id": values.id, "type": "function", "function": called}]}


class ToolResultBlockObject(OpenObject[Message]):
    tool_use_id = TextField("The call that it answers.", required=True)
    content = ContentField("What the tool returned: a text, or text blocks.")
    is_error = UnusedField(BooleanField("No effect; say in the content what failed."))

    def check(self, values: Self) -> Message:
        result = {"tool_call_id": values.tool_use_id, "content": values.content or ""}
        return {"role": "tool", **result}


class BlocksField(ListField[list[Message]]):
    """A text, or content blocks of some types. Read as the parts of messages that they become."""

    def __init__(self, **readers: OpenObject[Message]) -> None:
        child = TypedObjectField(
            {"text": TextBlockObject(), **readers},
            "a block of type {0!r} cannot be read here; leave it out, or send one of: {1}.",
            code="unsupported_content_type",
        )
        super().__init__(child=child, required=True)

    def to_schema(self) -> dict[str, object]:
        return {"anyOf": [{"type": "string"}, super().to_schema()]}

    def read(self, data: object, context: Context | None = None) -> list[Message]:
        if type(data) is str:
            return [{"content": data}]
        return super().read(expect(data, list, "a string or an array of blocks"), context)

    def list_ignored(self, data: object) -> Iterator[str]:
        return iter(()) if type(data) is str else super().list_ignored(data)


class SystemTurnObject(OpenObject[Sequence[Message]]):
    """What one side said. Read as one or more messages of a chat."""

    role = TextField("Who speaks.", required=True)
    content = BlocksField()

    def check(self, values: Self) -> Sequence[Message]:
        return _join(values.role, values.content)


class UserTurnObject(SystemTurnObject):
    content = BlocksField(tool_result=ToolResultBlockObject())


class AssistantTurnObject(SystemTurnObject):
    content = BlocksField(
        thinking=ThinkingBlockObject(),
        redacted_thinking=RedactedBlockObject(),
        tool_use=ToolUseBlockObject(),
    )


def _join(role: str, parts: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of one turn: texts, thoughts and calls are one, each result is its
    own."""
    messages: list[dict[str, Any]] = []
    for part in parts:
        if "role" in part:
            messages.append(dict(part))
            continue
        if not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "content": ""})
        for name, value in part.items():
            said = messages[-1].get(name)
            messages[-1][name] = value if said is None else said + value
    for message in messages:
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None
    return messages or [{"role": role, "content": ""}]


TURN: Final = TypedObjectField(
    {"user": UserTurnObject(), "assistant": AssistantTurnObject(), "system": SystemTurnObject()},
    "{0!r} is no side of a conversation; send one of: {1}.",
    key="role",
    code="invalid_value",
)


class TurnsField(MessagesField):
    """The turns of a conversation. Read as the messages of a chat."""

    def to_schema(self) -> dict[str, object]:
        return {"type": "array", "items": self.child.to_schema(), "minItems": 1}

    def read(self, data: object, context: Context | None = None) -> list[Message]:
        turns = self.read_all(expect(data, list, "an array"), context)
        return [message for turn in turns for message in turn]


class MessageToolObject(StrictObject[Tool]):
    """A tool of the client's. Read as a Tool."""

    unsupported = {
        "defer_loading": "Models see all tools; leave out those that they need not see.",
        "allowed_callers": "This server runs no code; omit it.",
        "input_examples": "Say it in the description.",
    }
    type = ChoiceField("The type.", choices=[CUSTOM])
    name = TextField("1-64 letters, digits, _ or -.", pattern=TOOL_NAME, required=True)
    description = FunctionObject.description
    input_schema: StorableObjectField[dict[str, Any]] = StorableObjectField(
        "JSON Schema of the input, as `parameters` in chat completions.", required=True
    )
    strict = FunctionObject.strict
    cache_control = UnusedField(ObjectField("No effect; prefixes are always cached."))
    eager_input_streaming = UnusedField(BooleanField("No effect; inputs are always streamed."))

    def check(self, values: Self) -> Tool:
        fields = {name: values.list_values()[name] for name in ("name", "description", "strict")}
        function = FunctionObject.fill({**fields, "parameters": values.input_schema})
        return FunctionObject().check(function)


TOOL: Final = TypedObjectField({CUSTOM: MessageToolObject()}, HOSTED, default=CUSTOM)
_MODES: Final = {"auto": AUTO, "any": REQUIRED, "tool": REQUIRED, "none": NONE}


class MessageToolChoiceObject(StrictObject[ToolChoice | None]):
    """Read as a ToolChoice."""

    type = ChoiceField("any: at least one call comes.", choices=_MODES, required=True)
    name = TextField("With tool: which one.", pattern=TOOL_NAME)
    disable_parallel_tool_use = BooleanField("true: at most one call.")

    def check(self, values: Self) -> ToolChoice:
        kind: str = values.type
        needs = ("name",) if kind == "tool" else ()
        takes = () if kind == "none" else ("disable_parallel_tool_use",)
        check_fields(values, needs, (*needs, *takes))
        names = None if values.name is None else (values.name,)
        return ToolChoice(_MODES[kind], names, parallel=not values.disable_parallel_tool_use)


class MessageThinkingObject(StrictObject[Thinking | None]):
    """Read as a Thinking."""

    type = ChoiceField(
        "adaptive leaves it to the model's template.",
        choices=[ENABLED, DISABLED, "adaptive"],
        required=True,
    )
    budget_tokens = IntegerField(
        "With enabled: tokens of thoughts after which the answer begins.", min_value=1
    )
    display = UnusedField(ChoiceField(_NO_SUMMARY, choices=["summarized"]))

    def check(self, values: Self) -> Thinking:
        kind: str = values.type
        check_fields(values, (), ("display", *(("budget_tokens",) if kind == ENABLED else ())))
        return Thinking(kind if kind in (ENABLED, DISABLED) else BY_TEMPLATE, values.budget_tokens)
