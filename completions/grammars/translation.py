"""Every kind of constraint: the check of its static caps, and its translation for llguidance."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from completions.grammars import ebnf, json_schema, lark, regex, structural_tag
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, brief
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import Limits, check_bytes, check_chains, check_ebnf_chains
from completions.grammars.structural_tag import tag_dispatch
from completions.grammars.structural_tag.writer import Writer


def screen(constraint: Constraint, limits: Limits) -> None:
    """Raises GrammarError for a constraint beyond the static caps. Takes about linear time."""
    with _naming(constraint):
        kind, value = constraint.plain()
        _KINDS[kind].screen(value, limits)


def translate(constraint: Constraint, compiler: Compiler = DEFAULT_COMPILER) -> Translated:
    """The llguidance grammar of a constraint. Raises GrammarError.

    Native code may recurse deeply: call it where the stack is large, as `judging` does.
    """
    with _naming(constraint):
        kind, value = constraint.plain()
        return _KINDS[kind].translate(value, compiler, constraint.whitespace)


@contextmanager
def _naming(constraint: Constraint) -> Iterator[None]:
    """Errors name the field of the constraint, unless they name one inside it."""
    try:
        yield
    except RecursionError as cause:
        error = GrammarError("nested too deeply")
        error.field = constraint.named
        raise error from cause
    except GrammarError as error:
        error.field = error.field or constraint.named
        raise


def _screen_ebnf(text: str, limits: Limits) -> None:
    check_bytes(text, limits)
    check_ebnf_chains(text, limits)


def _translate_ebnf(text: str, compiler: Compiler) -> Translated:
    check_bytes(text, compiler.limits)
    parsed = ebnf.parse(text, compiler.limits)
    tagged = tag_dispatch.part(parsed)
    if tagged is not None:
        grammar = Writer(compiler.limits).write(tagged)
    else:
        grammar = ebnf.write(parsed, compiler.limits)
        check_chains(grammar, compiler.limits)
    if message := compiler.complaint(grammar):
        raise GrammarError(tag_dispatch.explain(brief(message), text))
    return Translated(grammar)


class _Kind(NamedTuple):
    """What is done with the value of one kind of constraint."""

    screen: Callable[[Any, Limits], object]
    translate: Callable[[Any, Compiler, str], Translated]
    """With the whitespace between the tokens of JSON."""


_KINDS: Mapping[str, _Kind] = {
    "ebnf": _Kind(_screen_ebnf, lambda value, compiler, _: _translate_ebnf(value, compiler)),
    "regex": _Kind(regex.screen, lambda value, compiler, _: regex.translate(value, compiler)),
    "json_schema": _Kind(json_schema.screen, json_schema.translate),
    "structural_tag": _Kind(structural_tag.screen, structural_tag.translate),
    "lark": _Kind(lark.screen_text, lark.translate_text),
    "llguidance": _Kind(lark.screen, lark.translate),
    structural_tag.ANSWER: _Kind(
        lambda value, limits: structural_tag.screen_answer(value, limits, screen),
        lambda value, compiler, whitespace: structural_tag.translate_answer(
            value, compiler, whitespace, translate
        ),
    ),
}
