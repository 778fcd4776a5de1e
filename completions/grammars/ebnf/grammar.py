"""A grammar as it was written: rules by name, one of which is the root."""

from dataclasses import dataclass, field

from completions.grammars.ebnf.expressions import Expression, Expressions

ROOT = "root"


@dataclass(slots=True)
class Grammar:
    """Rules over the expressions of `make`. Every reference names a rule."""

    text: str
    make: Expressions
    start: Expression
    """The expression that a whole text matches: the root, unless a caller adds to it."""
    rules: dict[str, Expression] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """The offset in `text` of each rule's definition."""
    lookaheads: list[int] = field(default_factory=list)
    """The offsets of look-aheads, (= ...), which are hints and restrict no text."""
