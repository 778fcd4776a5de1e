"""Free text up to one of several strings, for TagDispatch(...).

This is an Aho-Corasick automaton. The states are the prefixes of the strings; the state after
a text is the longest prefix that the text ends with.
"""

from collections.abc import Iterator
from functools import lru_cache

from completions.grammars import code_points
from completions.grammars.code_points import Ranges
from completions.grammars.ebnf.expressions import EMPTY, Expression, Expressions, FreeText

START = ""
"""The state before any character."""


@lru_cache(maxsize=64)
def steps(avoided: tuple[str, ...]) -> dict[str, list[tuple[Ranges, str]]]:
    """For each state, characters and the state that they lead to.

    That state may be one of the strings, which have no steps.
    """
    states = {string[:length] for string in avoided for length in range(len(string))}
    characters = sorted(set("".join(avoided)))
    others = code_points.complement(
        code_points.union((ord(each), ord(each)) for each in characters)
    )
    found = {}
    for state in sorted(states):
        found[state] = [(others, START)]
        for character in characters:
            following = state + character
            while following not in states and following not in avoided:
                following = following[1:]
            code_point = ord(character)
            found[state].append((((code_point, code_point),), following))
    return found


def edges(node: FreeText) -> Iterator[tuple[str, Ranges, str]]:
    """The steps that stay in free text, and those that complete the string at its end."""
    for state, following in steps(node.avoided).items():
        for ranges, target in following:
            if target not in node.avoided or target == node.end:
                yield state, ranges, target


def expand(node: FreeText, make: Expressions) -> tuple[Expression, dict[str, Expression]]:
    """The same text as an expression over single characters, and its rules: one for each state.

    They are left-linear, which is cheap to parse. Their names cannot clash with a client's.
    """
    options: dict[str, list[Expression]] = {state: [] for state in steps(node.avoided)}
    options[START].append(EMPTY)
    ends = []
    for state, ranges, target in edges(node):
        step = make.concatenation([_rule(node, state, make), make.characters(ranges)])
        options[target].append(step) if target in options else ends.append(step)
    if not node.end:
        ends = [_rule(node, state, make) for state in options]
    return make.alternation(ends), {
        _name(node, state): make.alternation(each) for state, each in options.items()
    }


def _rule(node: FreeText, state: str, make: Expressions) -> Expression:
    return make.reference(_name(node, state))


def _name(node: FreeText, state: str) -> str:
    return f"{node.avoided!r} {state!r}"
