"""From any constraint field to a grammar that llguidance takes."""

from completions.grammars import (
    composition,
    ebnf,
    grammar_object,
    json_schema,
    regex,
    structural_tag,
    tag_dispatch,
)
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, brief
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import check_bytes, check_chains
from completions.grammars.structural_tag.writer import Writer


def translate(constraint: Constraint, compiler: Compiler = DEFAULT_COMPILER) -> Translated:
    """The llguidance grammar of a constraint. Raises GrammarError.

    May recurse deeply in native code: run it where the stack is large, as `judging` does.
    """
    try:
        return _translate(constraint, compiler)
    except RecursionError as cause:
        error = GrammarError("nested too deeply")
        error.field = constraint.named
        raise error from cause
    except GrammarError as error:
        error.field = error.field or constraint.named  # of a part, if it has parts
        raise


def _translate(constraint: Constraint, compiler: Compiler) -> Translated:
    field, value, whitespace, _ = constraint
    if field == "ebnf":
        return _translate_ebnf(value, compiler)
    if field == "regex":
        return regex.translate(value, compiler)
    if field == "json_schema":
        return json_schema.translate(value, compiler, whitespace)
    if field == "structural_tag" or (
        field == "response_format" and value["type"] == "structural_tag"
    ):
        return structural_tag.translate(value, compiler, whitespace)
    if field == "response_format":
        return json_schema.translate_response_format(value, compiler, whitespace)
    if field == "grammar":
        return grammar_object.translate(value, compiler, whitespace)
    if field == composition.FIELD:
        return composition.translate(value, compiler, translate)
    raise ValueError(f"{field} is no constraint")


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
