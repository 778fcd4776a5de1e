"""Patterns of `patternProperties` that share names, split into patterns that do not.

llguidance takes patterns only where no name has two of them.
"""

from collections.abc import Mapping
from itertools import combinations

from completions.grammars.json_schema.rewriting import automata, pattern_writer
from completions.grammars.json_schema.rewriting.pattern_parser import PatternError
from completions.grammars.json_schema.rewriting.schema_algebra import Node, both

MAX_PATTERNS = 5
"""Patterns of one object that are split: they may overlap in 31 ways."""

MAX_COMPARED = 16
"""Patterns of one object that are compared; llguidance refuses more if two share names."""


def share_names(patterns: Mapping[str, Node]) -> bool:
    """Whether a name may have two of the patterns. False if that cannot be decided cheaply."""
    if len(patterns) > MAX_COMPARED:
        return False
    try:
        return any(
            not (automata.matching(one) & automata.matching(other)).is_empty
            for one, other in combinations(patterns, 2)
        )
    except PatternError:
        return False


def split(patterns: Mapping[str, Node]) -> dict[str, Node]:
    """The same constraints by patterns that share no names. Raises PatternError."""
    if len(patterns) > MAX_PATTERNS:
        raise PatternError(
            f"{len(patterns)} patterns share names; give at most {MAX_PATTERNS}, or ones that "
            "match different names"
        )
    found: dict[str, Node] = {}
    for size in range(1, len(patterns) + 1):
        for chosen in combinations(patterns, size):
            language = automata.ANY
            for pattern in patterns:
                machine = automata.matching(pattern)
                language &= machine if pattern in chosen else machine.complement()
            if language.is_empty:
                continue
            node: Node = True
            for pattern in chosen:
                node = both(node, patterns[pattern])
            found[pattern_writer.written(language)] = node
    return found
