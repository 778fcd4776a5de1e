"""Free text up to one of several strings, for TagDispatch(...).

This is an Aho-Corasick automaton. The states are the prefixes of the strings; the state after
a text is the longest prefix that the text ends with.
"""

from collections.abc import Iterator
from functools import lru_cache

from completions.grammars.ebnf.expressions import EMPTY, Expression, Expressions, FreeText
from completions.regular import code_points
from completions.regular.code_points import Ranges

START = ""
"""The state before any character."""


@lru_cache(maxsize=64)
def build_steps(avoided: tuple[str, ...]) -> dict[str, list[tuple[Ranges, str]]]:
    """Return, for each state, characters and the state that they lead to.

    That state may be one of the strings, which have no steps.
    """
    states = {string[:length] for string in avoided for length in range(len(string))}
    characters = sorted(set("".join(avoided)))
    others = code_points.invert(code_points.merge((ord(each), ord(each)) for each in characters))
    table = {}
    for state in sorted(states):
        table[state] = [(others, START)]
        for character in characters:
            following = state + character
            while following not in states and following not in avoided:
                following = following[1:]
            code_point = ord(character)
            table[state].append((((code_point, code_point),), following))
    return table


def iter_edges(node: FreeText) -> Iterator[tuple[str, Ranges, str]]:
    """Yield the steps that stay in free text, and those that complete the string at its end."""
    for state, following in build_steps(node.avoided).items():
        for ranges, target in following:
            if target not in node.avoided or target == node.end:
                yield state, ranges, target


def expand(node: FreeText, make: Expressions) -> tuple[Expression, dict[str, Expression]]:
    """Return the same text as an expression over single characters, and its rules: one for each
    state.

    They are left-linear, which is cheap to parse. Their names cannot clash with a client's.
    """
    options: dict[str, list[Expression]] = {state: [] for state in build_steps(node.avoided)}
    options[START].append(EMPTY)
    ends = []
    for state, ranges, target in iter_edges(node):
        step = make.make_concatenation(
            [_make_rule(node, state, make), make.make_characters(ranges)]
        )
        options[target].append(step) if target in options else ends.append(step)
    if not node.end:
        ends = [_make_rule(node, state, make) for state in options]
    return make.make_alternation(ends), {
        _make_name(node, state): make.make_alternation(each) for state, each in options.items()
    }


def _make_rule(node: FreeText, state: str, make: Expressions) -> Expression:
    return make.make_reference(_make_name(node, state))


def _make_name(node: FreeText, state: str) -> str:
    return f"{node.avoided!r} {state!r}"
