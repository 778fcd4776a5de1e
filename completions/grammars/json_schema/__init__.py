"""A JSON Schema is enforced exactly: what llguidance cannot enforce is refused, never ignored."""

from completions.grammars.json_schema.checking import check, checked, translate
from completions.grammars.json_schema.schema import (
    Schema,
    dump,
    errors_inside,
    load,
    prepare,
    screen,
)

__all__ = [
    "Schema", "check", "checked", "dump", "errors_inside", "load", "prepare", "screen", "translate",
]  # fmt: skip
