"""A JSON Schema is enforced exactly: what llguidance cannot enforce is refused, never ignored."""

from completions.grammars.json_schema.checking import check, check_inside, translate
from completions.grammars.json_schema.schema import (
    Schema,
    dump,
    load,
    prefix_errors,
    prepare,
    screen,
)

__all__ = [
    "Schema",
    "check",
    "check_inside",
    "dump",
    "load",
    "prefix_errors",
    "prepare",
    "screen",
    "translate",
]
