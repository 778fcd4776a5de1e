"""The tables of request fields in docs/api.md, written from the fields themselves."""

from typing import Any

from rest_framework.fields import empty

from completions.requests.fields.base import StrictField
from completions.requests.fields.objects import StrictSerializer


def field_table(serializer: StrictSerializer, without: frozenset[str] = frozenset()) -> str:
    """A Markdown table of all its fields but those `without`."""
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    fields = sorted(serializer.by_name.items(), key=lambda pair: not pair[1].required)
    for name, field in fields:
        if name not in without:
            kind = type_text(field.to_schema())
            lines.append(f"| `{name}` | {kind} | {_default(field)} | {field.help_text} |")
    return "\n".join(lines).replace("[]|", "[]\\|") + "\n"


def _default(field: StrictField) -> str:
    if field.required:
        return "required"
    default = field.default
    if default in (None, empty):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    return str(default)


def type_text(schema: dict[str, Any]) -> str:
    """A JSON Schema in a few words: `integer ≥ 1`, `number in (0, 2]`, `string or string[]`."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(type_text, schema["anyOf"])))
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return ", ".join(f'"{value}"' for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"{_item_text(schema['items'])}[]"
    if kind in ("integer", "number"):
        return kind + _range_text(schema)
    return kind


def _item_text(items: dict[str, Any]) -> str:
    if items.get("type") in ("integer", "number"):
        return str(items["type"])
    text = type_text(items)
    return f"({text})" if " or " in text else text


def _range_text(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if above is not None:
        return f" in ({above:g}, {high:g}]" if high is not None else f" > {above:g}"
    if low is not None and high is not None:
        return f" in [{low:g}, {high:g}]" if abs(low) < 1e6 else ""
    return f" ≥ {low:g}" if low is not None else ""
