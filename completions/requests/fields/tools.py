"""The fields `tools` and `tool_choice` of a chat completion."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from completions.chat.tools import AUTO, NONE, REQUIRED, Tool, ToolChoice
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    Field,
    StorableObjectField,
    TextField,
)
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import StrictObject

MAX_TOOLS = 128
TOOL_NAME = r"[A-Za-z0-9_-]{1,64}"


class FunctionObject(StrictObject[Tool]):
    """Read as a Tool."""

    name = TextField("1-64 letters, digits, _ or -.", pattern=TOOL_NAME, required=True)
    description = TextField("What the model reads about the tool.")
    parameters: StorableObjectField[dict[str, Any] | None] = StorableObjectField(
        "JSON Schema of the arguments, which are always one object, and match it wherever a "
        "grammar can express it. Without it, the arguments are {}."
    )
    strict = BooleanField(
        "true: a schema that cannot be enforced is refused, not relaxed.", default=False
    )

    def check(self, values: Self) -> Tool:
        parameters = values.parameters or {}
        if parameters.get("type", "object") != "object":
            raise FieldError('must be "object".', "parameters.type")
        if type(parameters.get("properties", {})) is not dict:
            raise FieldError("must be an object.", "parameters.properties", code="invalid_type")
        return Tool(values.name, values.description, values.parameters, values.strict)


class ToolObject(StrictObject[Tool]):
    """Read as a Tool."""

    type = ChoiceField("The only type.", choices=["function"], required=True)
    function = FunctionObject("The function that can be called.", required=True)

    def check(self, values: Self) -> Any:
        return values.function


class NamedFunctionObject(StrictObject[str]):
    """Read as the tool's name."""

    name = TextField("The name of one of the tools.", pattern=TOOL_NAME, required=True)

    def check(self, values: Self) -> str:
        return values.name


class NamedToolObject(StrictObject[str]):
    """Read as the tool's name."""

    type = ChoiceField("The only type.", choices=["function"], required=True)
    function = NamedFunctionObject("Which tool.", required=True)

    def check(self, values: Self) -> Any:
        return values.function


class AllowedToolsObject(StrictObject[ToolChoice | None]):
    """Read as a ToolChoice."""

    mode = ChoiceField("Whether a call may or must come.", choices=[AUTO, REQUIRED], required=True)
    tools = ListField("Which tools.", child=NamedToolObject(), not_empty=True, required=True)

    def check(self, values: Self) -> ToolChoice:
        return ToolChoice(values.mode, tuple(values.tools))


class ToolChoiceObject(StrictObject[ToolChoice]):
    """The forms of `tool_choice` that are objects. Read as a ToolChoice."""

    type = ChoiceField(
        "One tool, or several.", choices=["function", "allowed_tools"], required=True
    )
    function = NamedFunctionObject("With type function.")
    allowed_tools = AllowedToolsObject("With type allowed_tools.")

    def check(self, values: Self) -> Any:
        kind = values.type
        if getattr(values, kind) is None:
            message = f"this field is required with type {kind}."
            raise FieldError(message, kind, code="missing_required_parameter")
        other = "allowed_tools" if kind == "function" else "function"
        if getattr(values, other) is not None:
            raise FieldError(f"needs type {other}, not {kind}.", other)
        if kind == "function":
            return ToolChoice(REQUIRED, (values.function,), parallel=False)
        return values.allowed_tools


class ToolChoiceField(Field[ToolChoice | None]):
    """A word, one tool by name, or a choice among some tools. Read as a ToolChoice."""

    def to_schema(self) -> dict[str, Any]:
        words = {"type": "string", "enum": [NONE, AUTO, REQUIRED]}
        return {"anyOf": [words, ToolChoiceObject().to_schema()]}

    def read(self, data: object, context: Context | None = None) -> Any:
        if type(data) is str:
            if data not in (NONE, AUTO, REQUIRED):
                raise FieldError(f"must be one of: {NONE}, {AUTO}, {REQUIRED}, or an object.")
            return ToolChoice(data)
        return ToolChoiceObject().read(data)


def assign_paths(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Return the tools with their places in the body. Raises FieldError for a name that comes
    twice."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            message = f"another tool is named {tool.name!r}; send each name once."
            raise FieldError(message, f"tools[{index}].function.name")
        seen.add(tool.name)
    return tuple(replace(tool, path=f"tools[{index}]") for index, tool in enumerate(tools))


def parse_choice(
    tool_choice: ToolChoice | None, parallel: bool | None, tools: Sequence[Tool]
) -> ToolChoice:
    """Return the choice, once the rules between the three fields are checked. Raises FieldError."""
    choice = tool_choice or ToolChoice(AUTO if tools else NONE)
    if not tools and choice.mode == REQUIRED:
        raise FieldError("needs tools; add them or leave this out.", "tool_choice")
    names = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in names:
            raise FieldError(f"names {name!r}, which is not among tools.", "tool_choice")
    return replace(choice, parallel=choice.parallel and parallel is not False)
