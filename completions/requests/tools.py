"""The fields `tools` and `tool_choice` of a chat completion."""

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from completions.chat.tools import AUTO, NONE, REQUIRED, Tool, ToolChoice
from completions.errors import FieldError
from completions.requests.fields import (
    BooleanField,
    ChoiceField,
    KeptObjectField,
    ListField,
    StrictField,
    StrictSerializer,
    TextField,
)
from completions.requests.messages import TOOL_NAME

MAX_TOOLS = 128


class FunctionSerializer(StrictSerializer):
    name = TextField(pattern=TOOL_NAME, help_text="1-64 letters, digits, _ or -.")
    description = TextField(required=False, help_text="Told to the model.")
    parameters = KeptObjectField(
        required=False, help_text="JSON Schema of the arguments, which are always one object."
    )
    strict = BooleanField(
        default=False,
        help_text="The arguments always match `parameters`; else any object may come.",
    )

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        parameters = validated["parameters"] or {}
        if parameters.get("type", "object") != "object":
            raise FieldError("invalid_value", 'must be "object".', "parameters.type")
        if type(parameters.get("properties", {})) is not dict:
            raise FieldError("invalid_type", "must be an object.", "parameters.properties")
        return validated


class ToolSerializer(StrictSerializer):
    type = ChoiceField(choices=["function"], help_text="The only type.")
    function = FunctionSerializer(help_text="What can be called.")


class NamedFunctionSerializer(StrictSerializer):
    name = TextField(pattern=TOOL_NAME, help_text="Of one of the tools.")


class NamedToolSerializer(StrictSerializer):
    type = ChoiceField(choices=["function"], help_text="The only type.")
    function = NamedFunctionSerializer(help_text="Which tool.")


class AllowedToolsSerializer(StrictSerializer):
    mode = ChoiceField(choices=[AUTO, REQUIRED], help_text="May or must one be called.")
    tools = ListField(child=NamedToolSerializer(), min_length=1, help_text="Which tools.")


class ToolChoiceSerializer(StrictSerializer):
    """The forms of `tool_choice` that are objects."""

    type = ChoiceField(choices=["function", "allowed_tools"], help_text="One tool, or several.")
    function = NamedFunctionSerializer(required=False, help_text="With type function.")
    allowed_tools = AllowedToolsSerializer(required=False, help_text="With type allowed_tools.")

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        kind = validated["type"]
        if validated[kind] is None:
            message = f"this field is required with type {kind}."
            raise FieldError("missing_required_parameter", message, kind)
        other = "allowed_tools" if kind == "function" else "function"
        if validated[other] is not None:
            raise FieldError("invalid_value", f"goes with type {other} only.", other)
        return validated


class ToolChoiceField(StrictField, serializers.JSONField):
    """`none`, `auto`, `required`, one tool by name, or a choice among some."""

    def to_schema(self) -> dict[str, Any]:
        words = {"type": "string", "enum": [NONE, AUTO, REQUIRED]}
        return {"anyOf": [words, ToolChoiceSerializer().to_schema()]}

    def to_internal_value(self, data: Any) -> ToolChoice:
        if type(data) is str:
            if data not in (NONE, AUTO, REQUIRED):
                message = f"must be one of: {NONE}, {AUTO}, {REQUIRED}, or an object."
                raise FieldError("invalid_value", message)
            return ToolChoice(data)
        value = ToolChoiceSerializer().to_internal_value(data)
        if value["type"] == "function":
            return ToolChoice(REQUIRED, (value["function"]["name"],), parallel=False)
        allowed = value["allowed_tools"]
        names = tuple(tool["function"]["name"] for tool in allowed["tools"])
        return ToolChoice(allowed["mode"], names)


def tools_of(given: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Validated tools. Raises FieldError where a name comes twice."""
    tools = tuple(
        Tool(**each["function"], place=f"tools[{index}]") for index, each in enumerate(given)
    )
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            message = "there is another tool of this name."
            raise FieldError("invalid_value", message, f"{tool.place}.function.name")
        seen.add(tool.name)
    return tools


def choice_of(given: ToolChoice | None, parallel: bool | None, tools: Sequence[Tool]) -> ToolChoice:
    """What may be called, as far as the fields go together. Raises FieldError."""
    choice = given or ToolChoice(AUTO if tools else NONE)
    if not tools and choice.mode == REQUIRED:
        raise FieldError("invalid_value", "needs tools.", "tool_choice")
    known = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            message = f"names {name!r}, which is not among tools."
            raise FieldError("invalid_value", message, "tool_choice")
    together = choice.parallel and parallel is not False
    return ToolChoice(choice.mode, choice.names, together)
