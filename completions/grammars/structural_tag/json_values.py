"""JSON inside a structural tag, written as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from completions.grammars import json_schema
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.json_schema import Schema
from completions.grammars.structural_tag.parts import Opaque

_BEGINNINGS = {
    "object": '"{"', "array": '"["', "string": r'"\""', "number": "/[0-9-]/",
    "integer": "/[0-9-]/", "boolean": "/[tf]/", "null": '"n"',
}  # fmt: skip
_ANY_BEGINNING = r'/[{\["0-9tfn-]/'


def check(
    given: Mapping[str, Any], pointer: str, compiler: Compiler, whitespace: str | int
) -> Schema:
    """The schema that lies at a pointer, checked. Raises GrammarError."""
    try:
        schema = json_schema.checked(given, compiler, whitespace)
    except GrammarError as error:
        error.inside(pointer)
        raise
    schema.warnings[:] = [
        Finding(each.keyword, pointer + each.pointer, each.message) for each in schema.warnings
    ]
    return schema


def symbol(compiled: Mapping[str, Any], kind: Any = None) -> Opaque:
    """What matches a schema that was checked; `kind` is its type where that is known."""
    first = _BEGINNINGS.get(kind, _ANY_BEGINNING) if isinstance(kind, str) else _ANY_BEGINNING
    return Opaque(f"%json {json.dumps(compiled, ensure_ascii=False)}", first)
