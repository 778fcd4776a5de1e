"""The fields that constrain the output, of which a request has at most one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from completions.catalog.entries import JSON_WHITESPACES
from completions.catalog.model_files import ModelFiles
from completions.exceptions import FieldError
from completions.grammars import Constraint
from completions.grammars.constraint import GRAMMAR_TYPES
from completions.grammars.limits import COMPACT
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    ObjectField,
    SchemaField,
    TextField,
)
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import StrictObject
from completions.requests.fields.vllm import (
    JSON_KEYS,
    Constrained,
    EitherGrammarField,
    OneOfField,
    StructuredOutputs,
    StructuredOutputsObject,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintKind:
    """A field that constrains the output. `grammars/translation.py` has what it is translated to,
    by the field or what `means` names."""

    field: str
    means: str = ""
    """The field of which this is another name."""
    is_json: bool = False
    """Whether the output is JSON, so that `json_whitespace` applies."""
    capability: str = ""
    """Its name among the capabilities of every model, if it has one of its own."""
    label: str = ""
    """Its name in the playground, which lacks it if this is empty."""
    example: str = ""
    """What the playground begins with."""


CONSTRAINT_KINDS: Final[Sequence[ConstraintKind]] = (
    ConstraintKind(field="ebnf", capability="ebnf", label="EBNF", example='root ::= "yes" | "no"'),
    ConstraintKind(
        field="regex", capability="regex", label="Regular expression", example="[A-Z][a-z]+"
    ),
    ConstraintKind(
        field="json_schema",
        is_json=True,
        capability="json_schema",
        label="JSON Schema",
        example='{"type": "object"}',
    ),
    ConstraintKind(field="response_format", is_json=True),
    ConstraintKind(
        field="structural_tag",
        is_json=True,
        capability="structural_tag",
        label="Structural tag",
        example='{"format": {"type": "any_text"}}',
    ),
    ConstraintKind(
        field="grammar",
        capability="lark",
        label="Grammar of llguidance",
        example='{"type": "lark", "value": "start: /[a-z]+/"}',
    ),
    ConstraintKind(field="structured_outputs"),
    ConstraintKind(field="guided_json", means="json_schema", is_json=True),
    ConstraintKind(field="guided_regex", means="regex"),
    ConstraintKind(field="guided_choice"),
    ConstraintKind(field="guided_grammar"),
)
CONSTRAINTS: Final = tuple(kind.field for kind in CONSTRAINT_KINDS)
_OTHER_NAMES = {kind.field: kind.means for kind in CONSTRAINT_KINDS if kind.means}
_JSON_PATHS = frozenset(
    [
        *(kind.field for kind in CONSTRAINT_KINDS if kind.is_json),
        *(f"structured_outputs.{key}" for key in JSON_KEYS),
    ]
)
_JSON_GRAMMARS = ("json_schema", "llguidance")
"""Types of `grammar` whose output may be JSON."""


class JSONSchemaFormatObject(StrictObject[dict[str, object] | None]):
    name = TextField(
        "1-64 letters, digits, _ or -; a label without effect.", pattern="[A-Za-z0-9_-]{1,64}"
    )
    description = TextField("For readers; no effect.")
    schema = ObjectField("The JSON Schema.", required=True)
    strict = BooleanField(
        "The output always matches the schema, also with false. true refuses schemas with unknown "
        "formats too."
    )

    def check(self, values: Self) -> dict[str, object]:
        return values.list_values()


class ResponseFormatObject(StrictObject[dict[str, Any] | None]):
    """Read as an object of the fields that have a value."""

    type = ChoiceField(
        "text sets no constraint.",
        choices=["text", "json_object", "json_schema", "structural_tag"],
        required=True,
    )
    json_schema = JSONSchemaFormatObject("With type json_schema.")
    format = ObjectField("With type structural_tag: a tree of nodes, each with a `type`.")
    structures = ListField(
        "With type structural_tag, its older form: {begin, schema, end} each.", child=ObjectField()
    )
    triggers = ListField(
        "With structures: each `begin` begins with one of these.", child=TextField()
    )
    at_least_one = BooleanField("With structures: begin with one, and with no other text.")
    _types = {
        "json_schema": "json_schema",
        **dict.fromkeys(("format", "structures", "triggers", "at_least_one"), "structural_tag"),
    }

    def check(self, values: Self) -> dict[str, object]:
        fields = {name: value for name, value in values.list_values().items() if value is not None}
        for name, kind in self._types.items():
            if name in fields and kind != fields["type"]:
                raise FieldError(f"needs type {kind}, not {fields['type']}.", name)
        if fields["type"] == "json_schema" and "json_schema" not in fields:
            message = "this field is required with type json_schema."
            raise FieldError(message, "json_schema", code="missing_required_parameter")
        return fields


class GrammarObject(StrictObject[dict[str, Any] | None]):
    type = ChoiceField("The language of `value`.", choices=list(GRAMMAR_TYPES), required=True)
    value = SchemaField(
        "A string with type regex or lark, an object with llguidance, either with json_schema.",
        required=True,
    )

    def check(self, values: Self) -> dict[str, object]:
        kind, value = values.type, values.value
        if kind in ("regex", "lark") and not isinstance(value, str):
            raise FieldError(f"must be a string with type {kind}.", "value", code="invalid_type")
        if kind == "llguidance" and isinstance(value, str):
            raise FieldError(
                "must be an object with type llguidance.", "value", code="invalid_type"
            )
        return values.list_values()


class ConstraintFields(StrictObject[Any]):
    ebnf = TextField("A grammar in EBNF whose rule `root` the output matches.")
    regex = TextField(
        "A regular expression (Rust syntax) that the output matches; \\d, \\w and \\s are ASCII, "
        "or Unicode's after (?u)."
    )
    json_schema = SchemaField("A JSON Schema, as an object or a string, that the output matches.")
    response_format = ResponseFormatObject("OpenAI's way to ask for JSON.")
    structural_tag = SchemaField(
        "Free text, constants and tags around JSON, patterns and grammars: an object, or "
        "a string that holds one."
    )
    grammar = GrammarObject("{type, value} with type regex, json_schema, lark or llguidance.")
    structured_outputs = StructuredOutputsObject(
        "vLLM's: one of json, regex, choice, grammar, json_object and structural_tag."
    )
    guided_json = SchemaField("vLLM's older name for json_schema.")
    guided_regex = TextField("vLLM's older name for regex.")
    guided_choice = OneOfField("vLLM's: up to 1024 texts, one of which is the output.")
    guided_grammar = EitherGrammarField(
        "vLLM's: a grammar, in EBNF where it has ::=, else in Lark, where the first rule begins if "
        "there is no `start`."
    )
    close = BooleanField(
        "true: an answer under the constraint is a whole text of it also where max_tokens ends it "
        "(finish_reason length); `meta_info.constraint` then has `closed` and `closed_at`. Refused "
        "if max_tokens is too small. Default as in models.toml."
    )
    json_whitespace = ChoiceField(
        "With a JSON constraint: compact writes none between tokens, flexible allows "
        "up to 32 characters; default as in models.toml.",
        choices=list(JSON_WHITESPACES),
    )


def parse_constraint(values: ConstraintFields, model: ModelFiles) -> Constraint | None:
    """Return the constraint of validated fields. Raises FieldError."""
    constraint = find_constraint(values)
    whitespace = values.json_whitespace
    if constraint is not None and _is_json(constraint):
        return constraint._replace(
            whitespace=_parse_whitespace(values) or model.entry.json_whitespace
        )
    if whitespace is not None:
        message = "needs a constraint to JSON; add one or leave this out."
        raise FieldError(message, "json_whitespace")
    return constraint


def find_constraint(values: ConstraintFields) -> Constraint | None:
    """Return the constraint of validated fields, before the model decides its whitespace. Raises
    FieldError."""
    names = [name for name in CONSTRAINTS if not _is_unset(name, getattr(values, name))]
    if len(names) > 1:
        message = f"cannot be combined with {names[0]}; send one constraint."
        raise FieldError(message, names[1], code="conflicting_constraints")
    return _make_constraint(names[0], getattr(values, names[0])) if names else None


def list_without_effect(values: ConstraintFields) -> list[str]:
    """Return paths of given fields that change nothing."""
    outputs: StructuredOutputs | None = values.structured_outputs
    return [f"structured_outputs.{name}" for name in outputs.ignored] if outputs else []


def _is_unset(field: str, value: Any) -> bool:
    return value in (None, "") or (field == "response_format" and value["type"] == "text")


def _make_constraint(name: str, value: object) -> Constraint:
    """Return the constraint of one field, which may be another system's name for it."""
    if isinstance(value, StructuredOutputs):
        return Constraint(*value.constrained, path=f"{name}.{value.path}")
    if isinstance(value, Constrained):
        return Constraint(*value, path=name)
    if name in _OTHER_NAMES:
        return Constraint(_OTHER_NAMES[name], value, path=name)
    return Constraint(name, value)


def _parse_whitespace(values: ConstraintFields) -> str | None:
    """Return the whitespace that a request chooses. Raises FieldError if it chooses twice."""
    chosen: str | None = values.json_whitespace
    outputs: StructuredOutputs | None = values.structured_outputs
    if outputs is None or not outputs.compact:
        return chosen
    if chosen not in (None, COMPACT):
        message = "contradicts structured_outputs.disable_any_whitespace. Send only one."
        raise FieldError(message, "json_whitespace")
    return COMPACT


def _is_json(constraint: Constraint) -> bool:
    if constraint.field == "grammar":
        return constraint.value["type"] in _JSON_GRAMMARS
    return constraint.error_path in _JSON_PATHS
