"""The fields that constrain the output, of which a request has at most one."""

from typing import Any

from completions.catalog.entries import JSON_WHITESPACES
from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.grammars import Constraint
from completions.grammars.constraint import GRAMMAR_TYPES
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    ListField,
    ObjectField,
    SchemaField,
    TextField,
)
from completions.requests.fields.objects import StrictSerializer, Values

CONSTRAINTS = (
    "ebnf", "regex", "json_schema", "response_format", "structural_tag", "grammar",
)  # fmt: skip
_JSON_CONSTRAINTS = ("json_schema", "response_format", "structural_tag")
_JSON_GRAMMARS = ("json_schema", "llguidance")
"""Types of `grammar` that may write JSON."""


class JSONSchemaFormatSerializer(StrictSerializer):
    name = TextField(
        required=False, pattern="[A-Za-z0-9_-]{1,64}",
        help_text="1-64 letters, digits, _ or -; a label without effect.",
    )  # fmt: skip
    description = TextField(required=False, help_text="For readers; no effect.")
    schema = ObjectField(help_text="The JSON Schema.")
    strict = BooleanField(
        default=True, help_text="The output always matches exactly; false is not weaker."
    )


class ResponseFormatSerializer(StrictSerializer):
    """Read as an object of the fields that have a value."""

    type = ChoiceField(
        choices=["text", "json_object", "json_schema", "structural_tag"],
        help_text="text sets no constraint.",
    )
    json_schema = JSONSchemaFormatSerializer(required=False, help_text="With type json_schema.")
    format = ObjectField(
        required=False, help_text="With type structural_tag: a tree of nodes, each with a `type`."
    )
    structures = ListField(
        required=False, child=ObjectField(),
        help_text="With type structural_tag, its older form: {begin, schema, end} each.",
    )  # fmt: skip
    triggers = ListField(
        required=False, child=TextField(),
        help_text="With structures: each `begin` begins with one of these.",
    )  # fmt: skip
    at_least_one = BooleanField(
        required=False, help_text="With structures: begin with one, and with no other text."
    )
    _types = {
        "json_schema": "json_schema",
        **dict.fromkeys(("format", "structures", "triggers", "at_least_one"), "structural_tag"),
    }

    def check(self, values: Values) -> dict[str, Any]:
        given = {name: value for name, value in values.items() if value is not None}
        for name, kind in self._types.items():
            if name in given and kind != given["type"]:
                message = f"needs type {kind}, not {given['type']}."
                raise FieldError("invalid_value", message, name)
        if given["type"] == "json_schema" and "json_schema" not in given:
            message = "this field is required with type json_schema."
            raise FieldError("missing_required_parameter", message, "json_schema")
        return given


class GrammarSerializer(StrictSerializer):
    type = ChoiceField(choices=list(GRAMMAR_TYPES), help_text="The language of `value`.")
    value = SchemaField(
        help_text="A string with type regex or lark, an object with llguidance, either with "
        "json_schema."
    )

    def check(self, values: Values) -> Values:
        kind, value = values["type"], values["value"]
        if kind in ("regex", "lark") and not isinstance(value, str):
            raise FieldError("invalid_type", f"must be a string with type {kind}.", "value")
        if kind == "llguidance" and isinstance(value, str):
            raise FieldError("invalid_type", "must be an object with type llguidance.", "value")
        return values


class ConstraintFields(StrictSerializer):
    ebnf = TextField(
        required=False, help_text="A grammar in EBNF whose rule `root` the output matches."
    )
    regex = TextField(
        required=False, help_text="A regular expression (Rust syntax) that the output matches."
    )
    json_schema = SchemaField(
        required=False,
        help_text="A JSON Schema, as an object or a string, that the output matches.",
    )
    response_format = ResponseFormatSerializer(
        required=False, help_text="OpenAI's way to ask for JSON."
    )
    structural_tag = SchemaField(
        required=False,
        help_text="Free text, constants and tags around JSON, patterns and grammars: an object, or "
        "a string that holds one.",
    )
    grammar = GrammarSerializer(
        required=False,
        help_text="{type, value} with type regex, json_schema, lark or llguidance.",
    )
    json_whitespace = ChoiceField(
        required=False, choices=list(JSON_WHITESPACES),
        help_text="With a JSON constraint: compact writes none between tokens, flexible allows "
        "up to 32 characters; default as in models.toml.",
    )  # fmt: skip


def constraint_of(values: Values, model: ModelFiles) -> Constraint | None:
    """The constraint of validated fields. Raises FieldError."""
    given = [name for name in CONSTRAINTS if not _is_unset(name, values[name])]
    if len(given) > 1:
        message = f"cannot be combined with {given[0]}; send one constraint."
        raise FieldError("conflicting_constraints", message, given[1])
    whitespace = values["json_whitespace"]
    if given and _writes_json(given[0], values[given[0]]):
        return Constraint(given[0], values[given[0]], whitespace or model.json_whitespace)
    if whitespace is not None:
        message = "needs a constraint to JSON; add one or leave this out."
        raise FieldError("invalid_value", message, "json_whitespace")
    return Constraint(given[0], values[given[0]]) if given else None


def _is_unset(field: str, value: Any) -> bool:
    return value in (None, "") or (field == "response_format" and value["type"] == "text")


def _writes_json(field: str, value: Any) -> bool:
    return field in _JSON_CONSTRAINTS or (field == "grammar" and value["type"] in _JSON_GRAMMARS)
