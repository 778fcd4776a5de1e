"""A grammar as its author wrote it: rules by name, one of them the root."""

from dataclasses import dataclass, field

from completions.grammars.ebnf.expressions import Expression, Expressions

ROOT = "root"


@dataclass(slots=True)
class Grammar:
    """Rules over the expressions that `make` made. Every reference leads to a rule."""

    text: str
    make: Expressions
    start: Expression
    """What a whole text matches: a reference to the root, unless more is put around it."""
    rules: dict[str, Expression] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """Where each rule is defined: an offset in `text`."""
    lookaheads: list[int] = field(default_factory=list)
    """Where (= ...) stands. It is a hint to the engine and restricts no text."""
