"""vLLM's names for constraints: `structured_outputs`, and the older `guided_...`.

The rules are vLLM's: vllm/sampling_params.py (StructuredOutputsParams), and for the language of a
grammar grammar_is_likely_lark of vllm/v1/structured_output/utils.py.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import BooleanField, Field, SchemaField, TextField
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import StrictObject

MAX_CHOICES_LISTED = 1024
JSON_KEYS = ("json", "json_object", "structural_tag")
"""Keys of `structured_outputs` whose output is JSON."""
_COMMENT = re.compile(r"(#|//).*")
_QUOTED = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|(?:\#|//).*|/(?:\\.|[^/\\\n])+/)|'((?:\\.|[^'\\\n])*)'"""
)
"""Whatever may contain a single quote in Lark, or a string in single quotes."""
_LARK_RULE = re.compile(r"\s*[?!]?([a-z_][a-z0-9_]*)\s*:")


class Constrained(NamedTuple):
    """A constraint under the name of Quire's own field for it."""

    field: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    constrained: Constrained
    path: str
    """Which of the keys holds the constraint."""
    compact: bool
    """Whether JSON must have no whitespace between its tokens."""
    ignored: tuple[str, ...]
    """Keys without effect."""


class OneOfField(ListField[Constrained | None]):
    """Texts, one of which is the whole output. Read as Constrained."""

    def __init__(self, help: str) -> None:
        Field.__init__(self, help)
        self.child, self.max_length, self.not_empty = TextField(), MAX_CHOICES_LISTED, True

    def read(self, data: object, context: Context | None = None) -> Any:
        texts = super().read(data, context)
        elements = [{"type": "const_string", "value": text} for text in dict.fromkeys(texts)]
        tree = {"type": "or", "elements": elements}
        return Constrained("structural_tag", {"type": "structural_tag", "format": tree})


class EitherGrammarField(Field[Constrained | None]):
    """A grammar in EBNF or Lark; an empty one counts as absent. Read as Constrained, or None.

    As in vLLM, a text with `::=` outside comments is EBNF, any other Lark. In Lark, strings may be
    in single quotes, and the first rule is the start if none is named `start`.
    """

    accepts = {"type": "string"}

    def read(self, data: object, context: Context | None = None) -> object:
        text = TextField().read(data)
        lines = [_COMMENT.sub("", line) for line in text.splitlines()]
        if not text or any("::=" in line for line in lines):
            return Constrained("ebnf", text) if text else None
        rules = [match[1] for line in lines if (match := _LARK_RULE.match(line))]
        text = _QUOTED.sub(_quote_match, text)
        if rules and "start" not in rules:
            text = f"{text}\nstart: {rules[0]}\n"
        return Constrained("grammar", {"type": "lark", "value": text})


def _quote_match(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    inside = match[2].replace(r"\'", "'").replace('"', r"\"")
    return f'"{inside}"'


class StructuredOutputsObject(StrictObject[StructuredOutputs | None]):
    """Read as StructuredOutputs."""

    json = SchemaField("A JSON Schema, as an object or a string.")
    regex = TextField("A regular expression.")
    choice = OneOfField("Texts, one of which is the output.")
    grammar = EitherGrammarField("A grammar in EBNF or Lark.")
    json_object = BooleanField("true: a JSON object of any content.")
    structural_tag = SchemaField("The same as the field structural_tag.")
    disable_any_whitespace = BooleanField(
        "true: no whitespace between the tokens of JSON.", default=False
    )
    disable_additional_properties = BooleanField(
        "Only false; write additionalProperties into the schema.", default=False
    )
    whitespace_pattern = TextField("No effect; json_whitespace chooses.")

    def check(self, values: Self) -> StructuredOutputs:
        constraints = {
            value_path: constrained
            for value_path, value in values.list_values().items()
            if value_path not in _OPTIONS
            and (constrained := _make_constrained(value_path, value)) is not None
        }
        if not constraints:
            message = "needs one of json, regex, choice, grammar, json_object and structural_tag."
            raise FieldError(message, code="missing_required_parameter")
        (value_path, constrained), *others = constraints.items()
        if others:
            message = f"cannot be combined with {value_path}; send one constraint."
            raise FieldError(message, others[0][0], code="conflicting_constraints")
        if values.disable_additional_properties:
            message = "cannot be true; write additionalProperties: false into the schema."
            path = "disable_additional_properties"
            raise FieldError(message, path, code="unsupported_value")
        writes_json = value_path in JSON_KEYS
        useless = {
            "whitespace_pattern": values.whitespace_pattern is not None,
            "disable_any_whitespace": values.disable_any_whitespace and not writes_json,
        }
        return StructuredOutputs(
            constrained=constrained,
            path=value_path,
            compact=values.disable_any_whitespace and writes_json,
            ignored=tuple(name for name, is_given in useless.items() if is_given),
        )


_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
_FIELDS = {"json": "json_schema", "regex": "regex", "structural_tag": "structural_tag"}


def _make_constrained(path: str, value: object) -> Constrained | None:
    """Return the constraint under a key; None where its value sets none."""
    if path == "json_object":
        return Constrained("json_schema", {"type": "object"}) if value else None
    if value in (None, ""):
        return None
    return value if isinstance(value, Constrained) else Constrained(_FIELDS[path], value)
