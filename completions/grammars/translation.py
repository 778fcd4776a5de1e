"""Every kind of constraint: the check of its static caps, and its translation for llguidance."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from completions.grammars import ebnf, json_schema, lark, regex, structural_tag
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translation
from completions.grammars.constraint import Constraint
from completions.grammars.ebnf import left_recursion
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import EBNF, Limits, check_bytes, check_chains, make_depth_error
from completions.grammars.messages import explain_error
from completions.grammars.structural_tag import tag_dispatch
from completions.grammars.structural_tag.writer import Writer


def screen(constraint: Constraint, limits: Limits) -> None:
    """Raise GrammarError for a constraint beyond the static caps. Takes roughly linear time."""
    with _name_errors(constraint):
        kind, value = constraint.as_plain()
        check, _ = _KINDS[kind]
        check(value, limits)


def translate(constraint: Constraint, compiler: Compiler = DEFAULT_COMPILER) -> Translation:
    """Return the llguidance grammar of a constraint. Raises GrammarError.

    Native code may recurse deeply: call it where the stack is large, as `validation` does.
    """
    with _name_errors(constraint):
        kind, value = constraint.as_plain()
        _, translate_kind = _KINDS[kind]
        translated = translate_kind(value, compiler, constraint.whitespace)
        if constraint.is_strict:
            _refuse_unknown_formats(translated)
        return translated


def _refuse_unknown_formats(translated: Translation) -> None:
    for diagnostic in translated.warnings:
        if diagnostic.keyword == "format":
            message = f"{diagnostic.message}; leave it out, or leave out strict"
            raise GrammarError(message, pointer=diagnostic.pointer, diagnostics=translated.warnings)


@contextmanager
def _name_errors(constraint: Constraint) -> Iterator[None]:
    """Name the field of the constraint in errors, unless they name one inside it."""
    try:
        yield
    except RecursionError as cause:
        error = make_depth_error()
        error.field = constraint.error_path
        raise error from cause
    except GrammarError as error:
        error.field = error.field or constraint.error_path
        raise


def _screen_ebnf(text: str, limits: Limits) -> None:
    check_bytes(text, limits)
    check_chains(text, limits, EBNF)


def _translate_ebnf(text: str, compiler: Compiler, _whitespace: str) -> Translation:
    check_bytes(text, compiler.limits)
    parsed = ebnf.parse(text, compiler)
    tagged = tag_dispatch.lower_dispatch(parsed)
    if tagged is not None:
        grammar = Writer(compiler).write(tagged)
    else:
        grammar = ebnf.write(parsed, compiler.limits)
        check_chains(grammar, compiler.limits)
    explain = partial(left_recursion.explain, parsed)
    if message := compiler.find_error(grammar):
        raise GrammarError(explain(tag_dispatch.explain(explain_error(message), text)))
    return Translation(grammar, parsed.make_warnings(), explain=explain)


def _screen_answer(answer: Mapping[str, Any], limits: Limits) -> None:
    if answer["constraint"]:
        screen(Constraint(*answer["constraint"]), limits)


def _translate_answer(
    answer: Mapping[str, object], compiler: Compiler, whitespace: str
) -> Translation:
    return structural_tag.translate_answer(answer, compiler, whitespace, translate)


_Kind = tuple[Callable[[Any, Limits], object], Callable[[Any, Compiler, str], Translation]]
"""The check of the static caps, and the translation with the whitespace between JSON's tokens."""
_KINDS: Mapping[str, _Kind] = {
    "ebnf": (_screen_ebnf, _translate_ebnf),
    "regex": (regex.screen, lambda pattern, compiler, _: regex.translate(pattern, compiler)),
    "json_schema": (json_schema.screen, json_schema.translate),
    "structural_tag": (structural_tag.screen, structural_tag.translate),
    "llguidance": (lark.screen, lark.translate),
    structural_tag.ANSWER: (_screen_answer, _translate_answer),
}
