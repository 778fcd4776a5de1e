"""Structural tags of clients, and the tree of a chat's answer, as grammars of llguidance."""

from collections.abc import Callable, Mapping
from typing import Any

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, brief
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema import dump
from completions.grammars.limits import COMPACT, Limits, check_bytes
from completions.grammars.structural_tag.lowering import Lowering
from completions.grammars.structural_tag.nodes import Tree
from completions.grammars.structural_tag.reader import read, read_answer
from completions.grammars.structural_tag.writer import Writer

ANSWER = "answer"
"""The kind of constraint that a chat completion makes: {"format": tree, "marks": texts,
"constraint": the client's own, as a list, or null}. No client can send it."""


def translate(
    value: Mapping[str, Any] | str, compiler: Compiler = DEFAULT_COMPILER, whitespace: str = COMPACT
) -> Translated:
    """The grammar of a structural tag, as an object or as text. Raises GrammarError."""
    tree = screen(value, compiler.limits)
    return _translated(Lowering(tree, compiler, whitespace), compiler)


def screen(value: Mapping[str, Any] | str, limits: Limits) -> Tree:
    """The tree, read within the static caps. Raises GrammarError."""
    check_bytes(value if isinstance(value, str) else dump(value), limits)
    return read(value, limits)


def translate_answer(
    value: Mapping[str, Any],
    compiler: Compiler,
    whitespace: str,
    translate: Callable[[Constraint, Compiler], Translated],
) -> Translated:
    """The grammar of a chat's answer. `translate` is for the client's constraint in it.

    Raises GrammarError with the field of the schema or the constraint that is wrong.
    """
    lowering = Lowering(read_answer(value), compiler, whitespace, translate)
    return _translated(lowering, compiler)


def screen_answer(
    value: Mapping[str, Any], limits: Limits, screen: Callable[[Constraint, Limits], None]
) -> None:
    """Raises GrammarError for a client's constraint that the static caps refuse."""
    constraint = read_answer(value).constraint
    if constraint is not None:
        screen(constraint, limits)


def _translated(lowering: Lowering, compiler: Compiler) -> Translated:
    part = lowering.part()
    grammar = Writer(compiler.limits).write(part, lowering.grammars)
    if message := compiler.complaint(grammar):
        raise GrammarError(brief(message))
    return Translated(grammar, lowering.warnings)
