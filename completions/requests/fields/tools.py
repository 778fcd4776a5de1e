"""The fields `tools` and `tool_choice` of a chat completion."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rest_framework import serializers

from completions.chat.tools import AUTO, NONE, REQUIRED, Tool, ToolChoice
from completions.errors import FieldError
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    ListField,
    StorableObjectField,
    StrictField,
    TextField,
)
from completions.requests.fields.messages import TOOL_NAME
from completions.requests.fields.objects import StrictSerializer, Values

MAX_TOOLS = 128


class FunctionSerializer(StrictSerializer):
    """Read as a Tool."""

    name = TextField(pattern=TOOL_NAME, help_text="1-64 letters, digits, _ or -.")
    description = TextField(required=False, help_text="What the model reads about the tool.")
    parameters = StorableObjectField(
        required=False, help_text="JSON Schema of the arguments, which are always one object."
    )
    strict = BooleanField(
        default=False,
        help_text="The arguments always match `parameters`; else any object may come.",
    )

    def check(self, values: Values) -> Tool:
        parameters = values["parameters"] or {}
        if parameters.get("type", "object") != "object":
            raise FieldError("invalid_value", 'must be "object".', "parameters.type")
        if type(parameters.get("properties", {})) is not dict:
            raise FieldError("invalid_type", "must be an object.", "parameters.properties")
        return Tool(**values)


class ToolSerializer(StrictSerializer):
    """Read as a Tool."""

    type = ChoiceField(choices=["function"], help_text="The only type.")
    function = FunctionSerializer(help_text="The function that can be called.")

    def check(self, values: Values) -> Tool:
        tool: Tool = values["function"]
        return tool


class NamedFunctionSerializer(StrictSerializer):
    name = TextField(pattern=TOOL_NAME, help_text="The name of one of the tools.")


class NamedToolSerializer(StrictSerializer):
    """Read as the tool's name."""

    type = ChoiceField(choices=["function"], help_text="The only type.")
    function = NamedFunctionSerializer(help_text="Which tool.")

    def check(self, values: Values) -> str:
        name: str = values["function"]["name"]
        return name


class AllowedToolsSerializer(StrictSerializer):
    """Read as a ToolChoice."""

    mode = ChoiceField(choices=[AUTO, REQUIRED], help_text="Whether a call may or must come.")
    tools = ListField(child=NamedToolSerializer(), min_length=1, help_text="Which tools.")

    def check(self, values: Values) -> ToolChoice:
        return ToolChoice(values["mode"], tuple(values["tools"]))


class ToolChoiceSerializer(StrictSerializer):
    """The forms of `tool_choice` that are objects. Read as a ToolChoice."""

    type = ChoiceField(choices=["function", "allowed_tools"], help_text="One tool, or several.")
    function = NamedFunctionSerializer(required=False, help_text="With type function.")
    allowed_tools = AllowedToolsSerializer(required=False, help_text="With type allowed_tools.")

    def check(self, values: Values) -> ToolChoice:
        kind = values["type"]
        if values[kind] is None:
            message = f"this field is required with type {kind}."
            raise FieldError("missing_required_parameter", message, kind)
        other = "allowed_tools" if kind == "function" else "function"
        if values[other] is not None:
            raise FieldError("invalid_value", f"needs type {other}, not {kind}.", other)
        if kind == "function":
            return ToolChoice(REQUIRED, (values["function"]["name"],), parallel=False)
        allowed: ToolChoice = values["allowed_tools"]
        return allowed


class ToolChoiceField(StrictField, serializers.JSONField):
    """A word, one tool by name, or a choice among some tools. Read as a ToolChoice."""

    def to_schema(self) -> dict[str, Any]:
        words = {"type": "string", "enum": [NONE, AUTO, REQUIRED]}
        return {"anyOf": [words, ToolChoiceSerializer().to_schema()]}

    def to_internal_value(self, data: Any) -> ToolChoice:
        if type(data) is str:
            if data not in (NONE, AUTO, REQUIRED):
                message = f"must be one of: {NONE}, {AUTO}, {REQUIRED}, or an object."
                raise FieldError("invalid_value", message)
            return ToolChoice(data)
        choice: ToolChoice = ToolChoiceSerializer().to_internal_value(data)
        return choice


def placed(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools with their places in the body. Raises FieldError for a name that comes twice."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            message = f"another tool is named {tool.name!r}; send each name once."
            raise FieldError("invalid_value", message, f"tools[{index}].function.name")
        seen.add(tool.name)
    return tuple(replace(tool, place=f"tools[{index}]") for index, tool in enumerate(tools))


def choice_of(given: ToolChoice | None, parallel: bool | None, tools: Sequence[Tool]) -> ToolChoice:
    """The choice after the rules between the three fields. Raises FieldError."""
    choice = given or ToolChoice(AUTO if tools else NONE)
    if not tools and choice.mode == REQUIRED:
        raise FieldError("invalid_value", "needs tools; add them or leave this out.", "tool_choice")
    known = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            message = f"names {name!r}, which is not among tools."
            raise FieldError("invalid_value", message, "tool_choice")
    return replace(choice, parallel=choice.parallel and parallel is not False)
