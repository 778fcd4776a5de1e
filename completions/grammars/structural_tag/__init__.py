"""Structural tags: free text, constants and tags around JSON, patterns and grammars."""

from collections.abc import Mapping
from typing import Any

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, brief
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema import dump
from completions.grammars.limits import COMPACT, Limits, check_bytes
from completions.grammars.structural_tag.formats import Format
from completions.grammars.structural_tag.lowering import Lowering
from completions.grammars.structural_tag.reader import read
from completions.grammars.structural_tag.writer import Writer


def translate(
    value: Mapping[str, Any] | str, compiler: Compiler = DEFAULT_COMPILER, whitespace: str = COMPACT
) -> Translated:
    """The grammar of a structural tag, as an object or as text. Raises GrammarError."""
    lowering = Lowering(compiler, whitespace)
    part = lowering.lower(screen(value, compiler.limits))
    grammar = Writer(compiler.limits).write(part)
    if message := compiler.complaint(grammar):
        raise GrammarError(brief(message))
    return Translated(grammar, lowering.warnings)


def screen(value: Mapping[str, Any] | str, limits: Limits) -> Format:
    """The tree, read within the static caps. Raises GrammarError."""
    check_bytes(value if isinstance(value, str) else dump(value), limits)
    return read(value, limits)
