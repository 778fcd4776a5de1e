"""Splits patterns of `patternProperties` that share names into patterns that share none. llguidance
requires this: no name may match two of them. It also gives a declared name to the patterns that
match it.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations

from completions.grammars.json_schema.rewriting.schema_algebra import combine
from completions.grammars.patterns.language import compile_pattern
from completions.grammars.schema.keywords import JSONSchema
from completions.regular import dfa
from completions.regular.elimination import write_pattern
from completions.regular.nfa import PatternError

Schemas = Mapping[str, JSONSchema]
MAX_PATTERNS = 5
"""Patterns that are split if they share names: they may overlap in 31 ways."""

MAX_COMPARED = 16
"""Patterns of one object that are compared; llguidance refuses more if two share names."""


def have_common_names(patterns: Schemas) -> bool:
    """Return whether a name may have two of the patterns. False if that cannot be decided
    cheaply."""
    if len(patterns) > MAX_COMPARED:
        return False
    try:
        return any(_have_common_names(one, other) for one, other in combinations(patterns, 2))
    except PatternError:
        return False


def split(patterns: Schemas) -> dict[str, JSONSchema]:
    """Return the same constraints by patterns that share no names. Raises PatternError."""
    return {
        pattern: _combine(patterns[each] for each in chosen)
        for chosen, pattern in _split_regions(tuple(patterns))
    }


def intersect(
    mine: Schemas, rest: JSONSchema, theirs: Schemas, their_rest: JSONSchema
) -> dict[str, JSONSchema]:
    """Return the patterns of two schemas together. A name with no pattern of one schema has its
    rest.

    Raises PatternError.
    """
    pairs = [
        (one, other)
        for one in mine
        for other in theirs
        if one != other
        and (
            (other not in mine and rest is not True)
            or (one not in theirs and their_rest is not True)
        )
    ]
    if len(pairs) > MAX_COMPARED**2:
        raise PatternError(
            f"{len(mine)} and {len(theirs)} patterns of two schemas that hold together are too "
            f"many to compare; give each at most {MAX_COMPARED}"
        )
    if any(_have_common_names(one, other) for one, other in pairs):
        return _intersect_by_region(mine, rest, theirs, their_rest)
    return {
        pattern: combine(mine.get(pattern, rest), theirs.get(pattern, their_rest))
        for pattern in (*mine, *(each for each in theirs if each not in mine))
    }


def _intersect_by_region(
    mine: Schemas, rest: JSONSchema, theirs: Schemas, their_rest: JSONSchema
) -> dict[str, JSONSchema]:
    result = {}
    for chosen, pattern in _split_regions(tuple(dict.fromkeys((*mine, *theirs)))):
        one = [mine[each] for each in chosen if each in mine]
        other = [theirs[each] for each in chosen if each in theirs]
        result[pattern] = combine(_combine(one or [rest]), _combine(other or [their_rest]))
    return result


def exclude_names(pattern: str, names: Iterable[str]) -> str:
    """Return the pattern, except that it does not match these names. Raises PatternError."""
    left = compile_pattern(pattern) & dfa.from_literals(names).complement()
    return write_pattern(left)


def _combine(nodes: Iterable[JSONSchema]) -> JSONSchema:
    combined: JSONSchema = True
    for node in nodes:
        combined = combine(combined, node)
    return combined


@lru_cache(maxsize=1024)
def _have_common_names(one: str, other: str) -> bool:
    return not (compile_pattern(one) & compile_pattern(other)).is_empty


def _split_regions(patterns: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    """Return the patterns that some name has together, each time with a pattern of all such names.

    Raises PatternError.
    """
    groups: list[tuple[str, ...]] = []
    for pattern in patterns:
        touched = [
            group for group in groups if any(_have_common_names(pattern, each) for each in group)
        ]
        joined = (*(each for group in touched for each in group), pattern)
        groups = [*(group for group in groups if group not in touched), joined]
    return [region for group in groups for region in _compute_regions(group)]


@lru_cache(maxsize=64)
def _compute_regions(patterns: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    """Return the regions of patterns each of which shares names with another."""
    if len(patterns) == 1:
        return [(patterns, patterns[0])]
    if len(patterns) > MAX_PATTERNS:
        raise PatternError(
            f"{len(patterns)} patterns share names; give at most {MAX_PATTERNS}, or ones that "
            "match different names"
        )
    regions = []
    for size in range(1, len(patterns) + 1):
        for chosen in combinations(patterns, size):
            language = dfa.ANY
            for pattern in patterns:
                machine = compile_pattern(pattern)
                language &= machine if pattern in chosen else machine.complement()
            if not language.is_empty:
                regions.append((chosen, write_pattern(language)))
    return regions
