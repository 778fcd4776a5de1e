"""The static caps alone: what they refuse needs no compiler, and no child process."""

from typing import Any

from completions.grammars import composition, grammar_object, json_schema, regex, structural_tag
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import Limits, check_bytes, check_ebnf_chains


def screen(constraint: Constraint, limits: Limits) -> None:
    """Raises GrammarError with the field that is wrong. Takes about linear time."""
    try:
        _screen(constraint.field, constraint.value, limits)
    except RecursionError as cause:
        raise GrammarError("nested too deeply") from cause
    except GrammarError as error:
        error.field = error.field or constraint.named  # of a part, if it has parts
        raise


def _screen(field: str, value: Any, limits: Limits) -> None:
    kind = value["type"] if field == "response_format" else field
    if kind == "ebnf":
        check_bytes(value, limits)
        check_ebnf_chains(value, limits)
    elif kind == "regex":
        regex.screen(value, limits)
    elif kind == "structural_tag":
        structural_tag.screen(value, limits)
    elif kind == "grammar":
        grammar_object.screen(value, limits)
    elif kind == composition.FIELD:
        for _, part in value["parts"]:
            screen(Constraint(*part), limits)
    elif kind == "json_schema":
        schema = value["json_schema"]["schema"] if field == "response_format" else value
        json_schema.prepare(schema, limits=limits)
