"""Rules of our own around constraints of clients, as one grammar.

The rules are Lark and refer to each part as `@name`. A part is translated like any constraint, so
its faults are reported where the client gave it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from completions.grammars.compiler import Compiler, Translated, brief
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.json_schema import dump

FIELD = "composition"
"""The field of such a constraint: not one that clients can send."""


@dataclass(frozen=True, slots=True)
class Part:
    """A constraint under the name that rules refer to it by."""

    name: str
    constraint: Constraint


def compose(lark: str, parts: tuple[Part, ...], place: str) -> Constraint:
    """Rules with the parts that they refer to. `place` is the field to name in errors."""
    listed = [[part.name, list(part.constraint)] for part in parts]
    return Constraint(FIELD, {"lark": lark, "parts": listed}, place=place)


def translate(
    value: Mapping[str, Any],
    compiler: Compiler,
    translate_part: Callable[[Constraint, Compiler], Translated],
) -> Translated:
    """Raises GrammarError with the field of the part that is wrong."""
    grammars: list[dict[str, Any]] = [{"lark_grammar": value["lark"]}]
    warnings: list[Finding] = []
    for name, part in value["parts"]:
        translated = translate_part(Constraint(*part), compiler)
        grammars += _named(name, translated.grammar)
        warnings += translated.warnings
    text = dump({"grammars": grammars})
    if message := compiler.complaint(text):
        raise GrammarError(brief(message))
    return Translated(text, warnings)


def _named(name: str, grammar: str) -> list[dict[str, Any]]:
    """A translated grammar as entries of a list, of which the first has this name."""
    if not grammar.lstrip().startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *rest = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *rest]
