"""Fields of the Responses API that differ from those of chat completions."""

from collections.abc import Collection, Iterator
from typing import Any, Final, Self

from completions.chat.tools import (
    AUTO,
    CUSTOM,
    FUNCTION,
    LARK,
    NONE,
    REGEX,
    REQUIRED,
    InputGrammar,
    ToolChoice,
)
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.effort import EFFORTS
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    Field,
    StorableObjectField,
    TextField,
    expect,
)
from completions.requests.fields.chat.tools import TOOL_NAME, CustomToolObject, FunctionObject
from completions.requests.fields.conversions.typed_objects import TypedObjectField
from completions.requests.fields.ignored import UnusedField
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import StrictObject
from completions.requests.fields.returns import StreamOptions

LOGPROBS: Final = "message.output_text.logprobs"
HOSTED: Final = (
    "this server runs no tools of type {0!r}; leave it out, or send a tool of type {1} and run it "
    "yourself."
)


def check_fields(values: Any, needs: Collection[str], takes: Collection[str]) -> dict[str, object]:
    """Return the fields that are given, once those are that a type needs, and no others than it
    takes. Raises FieldError."""
    kind: str = values.type
    given = {name: value for name, value in values.list_values().items() if value is not None}
    for name in given.keys() - {"type", *takes}:
        raise FieldError(f"has no meaning with type {kind}; leave it out.", name)
    for name in needs:
        if name not in given:
            message = f"this field is required with type {kind}."
            raise FieldError(message, name, code="missing_required_parameter")
    return given


class SummaryField(ChoiceField["str | None"]):
    def list_ignored(self, data: object) -> Iterator[str]:
        return iter(("",) if data == AUTO else ())


class ReasoningObject(StrictObject[Any]):
    effort = ChoiceField("As reasoning_effort in chat completions.", choices=EFFORTS)
    summary = SummaryField(
        "No summary is made: the items have the reasoning itself. auto has no effect.",
        choices=[AUTO, NONE],
    )


class TextFormatObject(StrictObject[Any]):
    type = ChoiceField(
        "text sets no constraint.",
        choices=["text", "json_object", "json_schema", "grammar"],
        required=True,
    )
    name = TextField("With json_schema: a label without effect.", pattern=TOOL_NAME)
    description = TextField("With json_schema: for readers; no effect.")
    schema: StorableObjectField[dict[str, Any] | None] = StorableObjectField(
        "With json_schema: the JSON Schema."
    )
    strict = BooleanField("With json_schema: as in response_format of chat completions.")
    syntax = ChoiceField("With grammar.", choices=[LARK, REGEX, "ebnf"])
    definition = TextField("With grammar: its text.")
    _needs: Final = {"json_schema": ("schema",), "grammar": ("syntax", "definition")}
    _takes: Final = {
        "json_schema": ("name", "description", "schema", "strict"),
        "grammar": ("syntax", "definition"),
    }

    def check(self, values: Self) -> object:
        kind: str = values.type
        return check_fields(values, self._needs.get(kind, ()), self._takes.get(kind, ()))


class TextObject(StrictObject[Any]):
    format = TextFormatObject("What the text must match.")
    verbosity = UnusedField(TextField("No effect; ask for a short or a long answer in a message."))


class FunctionToolObject(FunctionObject):
    type = ChoiceField("The type.", choices=[FUNCTION], required=True)


class ToolInputObject(StrictObject[InputGrammar | None]):
    """Read as what the input of a custom tool must match, if anything."""

    type = ChoiceField("Any text, or one that matches.", choices=["text", "grammar"], required=True)
    syntax = ChoiceField("With type grammar.", choices=[LARK, REGEX])
    definition = TextField("With type grammar: what the whole input matches.")
    _needs: Final = {"text": (), "grammar": ("syntax", "definition")}

    def check(self, values: Self) -> InputGrammar | None:
        check_fields(values, self._needs[values.type], self._needs[values.type])
        if values.syntax is None or values.definition is None:
            return None
        return InputGrammar(values.syntax, values.definition)


class CustomResponseToolObject(CustomToolObject):
    type = ChoiceField("The type.", choices=[CUSTOM], required=True)
    format = ToolInputObject("What the input is; default: any text.")


RESPONSE_TOOL: Final = TypedObjectField(
    {FUNCTION: FunctionToolObject(), CUSTOM: CustomResponseToolObject()}, HOSTED
)
"""A function or a custom tool. Read as a Tool."""


class ResponseToolChoiceField(Field[ToolChoice | None]):
    """A word, one tool by name, or a choice among some tools. Read as a ToolChoice."""

    accepts = {
        "anyOf": [
            {"type": "string", "enum": [NONE, AUTO, REQUIRED]},
            {"type": "object", "properties": {"type": {"enum": [FUNCTION, CUSTOM]}}},
            {
                "type": "object",
                "properties": {
                    "type": {"const": "allowed_tools"},
                    "mode": {"enum": [AUTO, REQUIRED]},
                    "tools": {"type": "array"},
                },
            },
        ]
    }

    def read(self, data: object, context: Context | None = None) -> ToolChoice:
        if type(data) is dict and data.get("type") == "allowed_tools":
            return AllowedObject().read(data, context)  # type: ignore[no-any-return]
        if type(data) is dict:
            return ToolChoice(REQUIRED, (NamedObject().read(data, context),), parallel=False)
        return ToolChoice(ChoiceField("", choices=[NONE, AUTO, REQUIRED], default=AUTO).read(data))


class NamedObject(StrictObject[str]):
    """Read as the tool's name."""

    type = ChoiceField("The type of the tool.", choices=[FUNCTION, CUSTOM], required=True)
    name = TextField("The name of one of the tools.", pattern=TOOL_NAME, required=True)

    def check(self, values: Self) -> str:
        return values.name


class AllowedObject(StrictObject[ToolChoice]):
    type = ChoiceField("The type.", choices=["allowed_tools"], required=True)
    mode = ChoiceField("Whether a call may or must come.", choices=[AUTO, REQUIRED], required=True)
    tools = ListField("Which tools.", child=NamedObject(), not_empty=True, required=True)

    def check(self, values: Self) -> ToolChoice:
        return ToolChoice(values.mode, tuple(values.tools))


class ConversationField(Field[str | None]):
    """An id, or an object with it. Read as the id."""

    accepts = {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        ]
    }

    def read(self, data: object, context: Context | None = None) -> str:
        if type(data) is dict and data.keys() == {"id"}:
            return expect(data["id"], str, "a string", "id")
        return expect(data, str, "an id, or an object with an id alone")


class IncludeField(ListField[Any]):
    def read(self, data: object, context: Context | None = None) -> list[object]:
        names = super().read(data, context)
        for index, name in enumerate(names):
            if name != LOGPROBS:
                message = f"this server includes nothing but {LOGPROBS}; leave {name!r} out."
                raise FieldError(message, f"[{index}]", code="unsupported_value")
        return names


class ResponseStreamOptionsObject(StrictObject[StreamOptions | None]):
    include_obfuscation = BooleanField(
        "Add `obfuscation` to every delta: random characters that hide how long its text is.",
        default=False,
    )

    def check(self, values: Self) -> StreamOptions:
        return StreamOptions(include_obfuscation=values.include_obfuscation)
