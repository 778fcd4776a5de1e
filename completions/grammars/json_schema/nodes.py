"""What one schema says about types, values and the schemas inside it, for all that walk over
schemas. The schema may be unchecked: what has a wrong shape says nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from completions.grammars.json_schema.pointers import escape

_MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies"))
_HOLDING = _MAPS | {
    "additionalProperties", "additionalItems", "items", "prefixItems", "allOf", "anyOf", "oneOf",
    "not", "if", "then", "else", "contains", "propertyNames",
}  # fmt: skip
"""The enforced keywords that hold schemas."""
_TYPES = {str: "string", list: "array", dict: "object", type(None): "null", bool: "boolean"}


def iter_parts(schema: Mapping[str, Any], pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stands where the enforced keywords hold schemas, each with its pointer."""
    for keyword, value in schema.items():
        if keyword not in _HOLDING:
            continue
        path = f"{pointer}/{escape(keyword)}"
        if keyword in _MAPS and isinstance(value, dict):
            yield from ((f"{path}/{escape(name)}", inner) for name, inner in value.items())
        elif isinstance(value, list):
            yield from ((f"{path}/{index}", inner) for index, inner in enumerate(value))
        else:
            yield path, value


def list_types(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that `type` names."""
    names = schema.get("type")
    names = [names] if isinstance(names, str) else names
    return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []


def list_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that `const` or `enum` lists; None if neither does."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def list_value_types(value: Any) -> set[str]:
    """Return the types of a value: an integer is a number, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {_TYPES[type(value)]}
    return {"number", "integer"} if isinstance(value, int) or value.is_integer() else {"number"}
