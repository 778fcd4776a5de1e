"""The fields `tools` and `tool_choice` of a chat completion."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from completions.chat.tools import (
    AUTO,
    CUSTOM,
    FUNCTION,
    LARK,
    NONE,
    REGEX,
    REQUIRED,
    InputGrammar,
    Tool,
    ToolChoice,
)
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


_ALLOWED = "allowed_tools"
_CHOICES = (FUNCTION, CUSTOM, _ALLOWED)


def check_kind(values: Any, kind: str | None, kinds: Sequence[str]) -> Any:
    """Return the field that has the name of a type. Raises FieldError if it is missing, or if the
    field of another type is given."""
    for other in kinds:
        if other != kind and getattr(values, other) is not None:
            raise FieldError(f"needs type {other}, not {values.type}.", other)
    if kind is None:
        return None
    if (value := getattr(values, kind)) is None:
        message = f"this field is required with type {kind}."
        raise FieldError(message, kind, code="missing_required_parameter")
    return value


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


class GrammarObject(StrictObject[InputGrammar | None]):
    syntax = ChoiceField("The language of the definition.", choices=[LARK, REGEX], required=True)
    definition = TextField(
        "What the whole input matches: Lark, as in `lark_grammar`, or a pattern, as in `regex`.",
        required=True,
    )

    def check(self, values: Self) -> InputGrammar:
        return InputGrammar(values.syntax, values.definition)


class InputFormatObject(StrictObject[InputGrammar | None]):
    """Read as what the input must match, if anything."""

    type = ChoiceField("Any text, or one that matches.", choices=["text", "grammar"], required=True)
    grammar = GrammarObject("With type grammar.")

    def check(self, values: Self) -> Any:
        check_kind(values, "grammar" if values.type == "grammar" else None, ("grammar",))
        return values.grammar


class CustomToolObject(StrictObject[Tool]):
    """Read as a Tool."""

    name = TextField("1-64 letters, digits, _ or -.", pattern=TOOL_NAME, required=True)
    description = TextField("What the model reads about the tool.")
    format = InputFormatObject("What the input is; default: any text.")

    def check(self, values: Self) -> Tool:
        return Tool.make_custom(values.name, values.description, values.format)


class ToolObject(StrictObject[Tool]):
    """Read as a Tool."""

    type = ChoiceField(
        "Whether it takes arguments or a text.", choices=[FUNCTION, CUSTOM], required=True
    )
    function = FunctionObject("With type function: what can be called.")
    custom = CustomToolObject("With type custom: a tool whose input is a text.")

    def check(self, values: Self) -> Any:
        return check_kind(values, values.type, (FUNCTION, CUSTOM))


class NamedFunctionObject(StrictObject[str]):
    """Read as the tool's name."""

    name = TextField("The name of one of the tools.", pattern=TOOL_NAME, required=True)

    def check(self, values: Self) -> str:
        return values.name


class NamedToolObject(StrictObject[str]):
    """Read as the tool's name."""

    type = ChoiceField("The type of the tool.", choices=[FUNCTION, CUSTOM], required=True)
    function = NamedFunctionObject("With type function: which tool.")
    custom = NamedFunctionObject("With type custom: which tool.")

    def check(self, values: Self) -> Any:
        return check_kind(values, values.type, (FUNCTION, CUSTOM))


class AllowedToolsObject(StrictObject[ToolChoice | None]):
    """Read as a ToolChoice."""

    mode = ChoiceField("Whether a call may or must come.", choices=[AUTO, REQUIRED], required=True)
    tools = ListField("Which tools.", child=NamedToolObject(), not_empty=True, required=True)

    def check(self, values: Self) -> ToolChoice:
        return ToolChoice(values.mode, tuple(values.tools))


class ToolChoiceObject(StrictObject[ToolChoice]):
    """The forms of `tool_choice` that are objects. Read as a ToolChoice."""

    type = ChoiceField("One tool, or several.", choices=_CHOICES, required=True)
    function = NamedFunctionObject("With type function.")
    custom = NamedFunctionObject("With type custom.")
    allowed_tools = AllowedToolsObject("With type allowed_tools.")

    def check(self, values: Self) -> Any:
        choice = check_kind(values, values.type, _CHOICES)
        if values.type == _ALLOWED:
            return choice
        return ToolChoice(REQUIRED, (choice,), parallel=False)


class ToolChoiceField(Field[ToolChoice | None]):
    """A word, one tool by name, or a choice among some tools. Read as a ToolChoice."""

    def to_schema(self) -> dict[str, object]:
        words = {"type": "string", "enum": [NONE, AUTO, REQUIRED]}
        return {"anyOf": [words, ToolChoiceObject().to_schema()]}

    def read(self, data: object, context: Context | None = None) -> object:
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
            raise FieldError(message, f"tools[{index}].{tool.kind}.name")
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
