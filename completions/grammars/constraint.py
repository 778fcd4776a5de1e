"""What the output must match, as a request asks for it."""

from typing import Any, NamedTuple

from completions.grammars.limits import COMPACT

GRAMMAR_TYPES = ("regex", "json_schema", "lark", "llguidance")
"""The types of the field `grammar`, as mistral.rs has them."""


class Constraint(NamedTuple):
    """A field of a request and its value, which the output must match."""

    field: str
    value: Any
    whitespace: str = COMPACT
    """Between the tokens of JSON: `compact` has none, `flexible` a bounded run."""
    place: str = ""
    """The path of the value in the request, where that is not the field."""

    @property
    def named(self) -> str:
        """What errors call it."""
        return self.place or self.field

    def plain(self) -> tuple[str, Any]:
        """The kind of constraint and its value, without the field's own envelope."""
        if self.field == "response_format":
            return _of_response_format(self.value)
        if self.field == "grammar":
            kind = self.value["type"]
            return kind, self.value["value"]
        return self.field, self.value


def _of_response_format(value: Any) -> tuple[str, Any]:
    if value["type"] == "json_object":
        return "json_schema", {"type": "object"}
    if value["type"] == "json_schema":
        return "json_schema", value["json_schema"]["schema"]
    return "structural_tag", value
