"""A constraint on the output, as a request gives it."""

from typing import Any, NamedTuple

from completions.grammars.limits import COMPACT

GRAMMAR_TYPES = ("regex", "json_schema", "lark", "llguidance")
"""The types of the field `grammar`, as mistral.rs has them."""


class Constraint(NamedTuple):
    """A field of a request and its value, which the output must match."""

    field: str
    value: Any
    whitespace: str = COMPACT
    """Whitespace between the tokens of JSON: `compact` has none, `flexible` a bounded run."""
    path: str = ""
    """The path of the value in the request, if that is not the field."""

    @property
    def error_path(self) -> str:
        """The name of the constraint in errors."""
        return self.path or self.field

    @property
    def is_strict(self) -> bool:
        """Whether a `format` without a meaning is an error. By default it is a warning."""
        if self.field != "response_format" or self.value["type"] != "json_schema":
            return False
        return self.value["json_schema"].get("strict") is True

    def as_plain(self) -> tuple[str, Any]:
        """Return the kind of constraint and its value, without the field's own envelope."""
        match self.field, self.value:
            case "response_format", {"type": "json_object"}:
                return "json_schema", {"type": "object"}
            case "response_format", {"type": "json_schema", "json_schema": {"schema": schema}}:
                return "json_schema", schema
            case "response_format", value:
                return "structural_tag", value
            case "grammar", {"type": "lark", "value": text}:
                return "llguidance", {"grammars": [{"lark_grammar": text}]}
            case "grammar", {"type": kind, "value": value}:
                return kind, value
        return self.field, self.value
