"""Writes the tables of request fields in docs/api.md, docs/responses.md and docs/messages.md from
the definitions of the fields."""

import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from completions.requests.chat import ChatRequestObject
from completions.requests.completion import CompletionRequestObject
from completions.requests.fields.base import Field
from completions.requests.generation import GenerationFields
from completions.requests.message import MessagesRequestObject
from completions.requests.response import ResponsesRequestObject

_PLACE = re.compile(r"(<!-- fields of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TABLES: Mapping[str, Mapping[str, Field[object]]] = {
    "completions": CompletionRequestObject.fields,
    "chat": {
        name: field
        for name, field in ChatRequestObject.fields.items()
        if name not in GenerationFields.fields
    },
    "responses": ResponsesRequestObject.fields,
    "messages": MessagesRequestObject.fields,
}
PAGES = ("api.md", "messages.md", "responses.md")


class Command(BaseCommand):
    help = __doc__

    def handle(self, **options: object) -> None:
        for page in PAGES:
            reference = settings.BASE_DIR / "docs" / page
            reference.write_text(fill_tables(reference.read_text()))


def fill_tables(text: str) -> str:
    """Return the text with up-to-date tables in the places that its comments mark."""
    return _PLACE.sub(lambda match: f"{match[1]}{_table(_TABLES[match[2]])}{match[3]}", text)


def _table(fields: Mapping[str, Field[object]]) -> str:
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in sorted(fields.items(), key=lambda pair: not pair[1].required):
        kind = format_type(field.to_schema())
        lines.append(f"| `{name}` | {kind} | {_default(field)} | {field.help} |")
    return "\n".join(lines) + "\n"


def _default(field: Field[object]) -> str:
    if field.required:
        return "required"
    if field.default is None:
        return ""
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()


def format_type(schema: dict[str, Any]) -> str:
    """Describe a JSON Schema in a few words: `integer ≥ 1`, `number in (0, 2]`, `string or
    string[]`."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(format_type, schema["anyOf"])))
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return ", ".join(f'"{value}"' for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"{_format_items(schema['items'])}[]"
    if kind in ("integer", "number"):
        return kind + _format_range(schema)
    return kind


def _format_items(items: dict[str, object]) -> str:
    if items.get("type") in ("integer", "number"):
        return str(items["type"])
    text = format_type(items)
    return f"({text})" if " or " in text else text


def _format_range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if above is not None:
        return f" in ({above:g}, {high:g}]" if high is not None else f" > {above:g}"
    if low is not None and high is not None:
        return f" in [{low:.10g}, {high:.10g}]" if abs(low) < 1e6 else ""
    return f" ≥ {low:g}" if low is not None else ""
