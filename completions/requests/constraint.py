"""The constraint fields of a request, and the judge that they are put before."""

import atexit
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.conf import settings

from completions.catalog.entries import JSON_WHITESPACES
from completions.catalog.model_files import ModelFiles
from completions.errors import APIError, FieldError
from completions.grammars import Constraint, Judge, Limits, Question, TokenSource, Verdict
from completions.grammars.constraint import GRAMMAR_TYPES
from completions.grammars.exceptions import GrammarError, GrammarOverloadError
from completions.requests.fields import (
    BooleanField,
    ChoiceField,
    ListField,
    ObjectField,
    SchemaField,
    StrictSerializer,
    TextField,
)

CONSTRAINTS = (
    "ebnf", "regex", "json_schema", "response_format", "structural_tag", "grammar",
)  # fmt: skip
_OF_JSON = ("json_schema", "response_format", "structural_tag")
_FORMAT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JSONSchemaFormatSerializer(StrictSerializer):
    name = TextField(
        required=False, help_text="1-64 letters, digits, _ or -; a label without effect."
    )
    description = TextField(required=False, help_text="For readers; without effect.")
    schema = ObjectField(help_text="The JSON Schema.")
    strict = BooleanField(
        default=True, help_text="The output always matches exactly; false is not weaker."
    )

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        name = validated["name"]
        if name is not None and not _FORMAT_NAME.fullmatch(name):
            raise FieldError("invalid_value", "must be 1-64 letters, digits, _ or -.", "name")
        return validated


class ResponseFormatSerializer(StrictSerializer):
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
    _types_of = {
        "json_schema": "json_schema",
        **dict.fromkeys(("format", "structures", "triggers", "at_least_one"), "structural_tag"),
    }

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in validated.items() if value is not None}
        for name, kind in self._types_of.items():
            if name in given and kind != given["type"]:
                raise FieldError("invalid_value", f"goes with type {kind} only.", name)
        if given["type"] == "json_schema" and "json_schema" not in given:
            message = "this field is required with type json_schema."
            raise FieldError("missing_required_parameter", message, "json_schema")
        return given


class GrammarSerializer(StrictSerializer):
    type = ChoiceField(choices=list(GRAMMAR_TYPES), help_text="What `value` is written in.")
    value = SchemaField(
        help_text="A string with type regex or lark, an object with llguidance, either with "
        "json_schema."
    )

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        kind, value = validated["type"], validated["value"]
        if kind in ("regex", "lark") and not isinstance(value, str):
            raise FieldError("invalid_type", f"must be a string with type {kind}.", "value")
        if kind == "llguidance" and isinstance(value, str):
            raise FieldError("invalid_type", "must be an object with type llguidance.", "value")
        return validated


class ConstraintFields(StrictSerializer):
    """What the output must match: at most one of these, and how JSON is written."""

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


def constraint_of(validated: Mapping[str, Any], model: ModelFiles) -> Constraint | None:
    """The one constraint of a validated body. Raises FieldError."""
    given = [name for name in CONSTRAINTS if not _is_unset(name, validated[name])]
    if len(given) > 1:
        message = f"cannot be combined with {given[0]}; give one constraint."
        raise FieldError("conflicting_constraints", message, given[1])
    wanted = validated["json_whitespace"]
    if not given or not _writes_json(given[0], validated[given[0]]):
        if wanted is not None:
            message = "goes with a constraint to JSON only."
            raise FieldError("invalid_value", message, "json_whitespace")
        return Constraint(given[0], validated[given[0]]) if given else None
    return Constraint(given[0], validated[given[0]], wanted or model.json_whitespace)


def _is_unset(field: str, value: Any) -> bool:
    return value in (None, "") or (field == "response_format" and value["type"] == "text")


def _writes_json(field: str, value: Any) -> bool:
    if field == "grammar":
        return value["type"] in ("json_schema", "llguidance")
    return field in _OF_JSON


async def judge(constraint: Constraint, model: ModelFiles) -> str:
    """The llguidance grammar text for a job. Raises APIError."""
    try:
        return await _judge().judge(constraint, token_source(model))
    except GrammarError as error:
        raise refusal(error) from error


def refusal(error: GrammarError) -> APIError:
    """What a client sees of a constraint that cannot be used, or not now."""
    if isinstance(error, GrammarOverloadError):
        return APIError(error.code, str(error))
    return APIError(error.code, str(error), error.field)


async def examine(constraint: Constraint, model: ModelFiles, text: str | None) -> Verdict:
    """The same with all that there is to say about it; faults are in the verdict."""
    return await _judge().ask(Question(constraint, token_source(model), text))


def token_source(model: ModelFiles) -> TokenSource:
    path = str(model.folder / "tokenizer.json")
    return TokenSource(path, model.vocab_size, model.eos_token_ids)


@lru_cache
def _judge() -> Judge:
    """This process's."""
    judge = Judge(
        Limits(
            max_bytes=settings.GRAMMAR_MAX_BYTES,
            max_depth=settings.GRAMMAR_MAX_DEPTH,
            max_chain=settings.GRAMMAR_MAX_CHAIN,
            max_enum=settings.GRAMMAR_MAX_ENUM,
            max_properties=settings.GRAMMAR_MAX_PROPERTIES,
            max_repetition=settings.GRAMMAR_MAX_REPETITION,
            max_length=settings.GRAMMAR_MAX_LENGTH,
            max_multiple=settings.GRAMMAR_MAX_MULTIPLE,
            max_forced=settings.GRAMMAR_MAX_FORCED,
            compile_seconds=settings.GRAMMAR_COMPILE_SECONDS,
            step_seconds=settings.GRAMMAR_STEP_SECONDS,
            seconds=settings.GRAMMAR_SECONDS,
            processes=settings.GRAMMAR_PROCESSES,
            cache_bytes=settings.GRAMMAR_CACHE_BYTES,
        )
    )
    atexit.register(judge.close)
    return judge
