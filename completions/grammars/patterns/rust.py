r"""Writes a regular expression without look-around in Rust's syntax, for llguidance.

llguidance 1.9.1 quotes a set of characters as they stand in a JSON string. If the set holds all of
U+0000 to U+001F, or all but the newline, its `json_quote` (derivre 0.3.13) adds \" and \\ whether
they belong to the set or not. It also joins sets that are alternatives. So if the sets that lack
one of the two would hold all of these characters together, one control character is left out of
them: no text with it is accepted there. Where numeric escapes are not allowed, llguidance skips the
characters that need one, and takes `a` for `\x01a`: so no set holds them.
"""

from collections.abc import Set
from functools import lru_cache
from typing import NamedTuple

from llguidance import LLMatcher

from completions.grammars import tokens
from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.syntax import (
    EMPTY,
    Alternation,
    Characters,
    Concatenation,
    Edge,
    Look,
    Node,
    walk,
)
from completions.regular.writer import HasConditionError, Writer, write_class, write_ranges

_ANY_TEXT = "(?s:.*)"
_QUOTES = (0x22, 0x5C)
_ALL_CONTROLS = (1 << 0x20) - 1
_NEWLINE = 1 << 0x0A
# The first choice is the one that a text is least likely to hold. Newline, tab and the others with
# a short escape stay.
_DISPENSABLE = tuple(point for point in range(1, 0x20) if not 0x08 <= point <= 0x0D)
_WITHOUT_SHORT_ESCAPE: Ranges = ((0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F))

_Open = bool | None
"""What stands at an edge: any text, or nothing; None if other parts of the pattern do."""


class Escapes(NamedTuple):
    """How the JSON around a pattern may write control characters."""

    numeric: bool = True
    """Whether escapes such as `\\u0001` are allowed."""
    kept: frozenset[int] = frozenset()
    """Control characters that should not be left out."""


ANY_ESCAPE = Escapes()


def write(node: Node, escapes: Escapes = ANY_ESCAPE) -> str:
    """Return a pattern of the texts in which the node is found, anchored at both ends.

    Raises HasConditionError for look-around, and for anchors in the middle.
    """
    if escapes.numeric:
        point = find_left_out(node, escapes.kept)
        writer = _Writer(() if point is None else ((point, point),))
    else:
        writer = _Writer(_WITHOUT_SHORT_ESCAPE, even_with_quotes=True)
    return f"^{writer.write_at_edges(node, True, True)}$"


def find_left_out(node: Node, controls: Set[int] = frozenset()) -> int | None:
    """Return the control character that no set may hold that lacks a quote or a backslash: one that
    the pattern does not name and that is not in `controls`, if there is one."""
    atoms = [atom for atom in walk(node) if isinstance(atom, Characters)]
    lacking = [[atom for atom in atoms if not _list_ascii(atom) >> point & 1] for point in _QUOTES]
    if not any(map(_has_all_controls, lacking)):
        return None
    needed = controls | {
        atom.ranges[0][0] for atom in atoms if len(atom.ranges) == 1 and not atom.properties
    }
    return next((point for point in _DISPENSABLE if point not in needed), _DISPENSABLE[0])


def has_quotes(atom: Characters) -> bool:
    """Return whether a set holds both characters that JSON writes after a backslash."""
    return all(_list_ascii(atom) >> point & 1 for point in _QUOTES)


def _has_all_controls(atoms: list[Characters]) -> bool:
    together = 0
    for atom in atoms:
        together |= _list_ascii(atom)
    return together & _ALL_CONTROLS | _NEWLINE == _ALL_CONTROLS


@lru_cache(maxsize=1024)
def _list_ascii(atom: Characters) -> int:
    """Return the ASCII characters of a set, as 128 bits."""
    if not atom.properties:
        ranges = ((low, min(high, 0x7F)) for low, high in atom.ranges if low <= 0x7F)
        return sum((1 << high + 1) - (1 << low) for low, high in ranges)
    grammar = LLMatcher.grammar_from_regex(Writer().write_characters(atom))
    mask = LLMatcher(tokens.load(None), grammar, log_level=0).compute_bitmask()
    return int.from_bytes(mask[:16], "little")


class _Writer(Writer):
    def __init__(self, excluded: Ranges, *, even_with_quotes: bool = False) -> None:
        self._excluded = excluded
        self._even_with_quotes = even_with_quotes

    def write_at_edges(self, node: Node, before: _Open, after: _Open) -> str:
        """Return a node at the edges of the pattern."""
        if node == EMPTY:
            return _ANY_TEXT if before or after else ""
        if not has_condition(node):
            start, end = _ANY_TEXT if before else "", _ANY_TEXT if after else ""
            return f"{start}{self.write(node)}{end}"
        if isinstance(node, Alternation):
            return (
                f"(?:{'|'.join(self.write_at_edges(each, before, after) for each in node.options)})"
            )
        if not isinstance(node, Concatenation | Edge):
            raise HasConditionError
        items = list(node.parts) if isinstance(node, Concatenation) else [node]
        while items and items[0] is Edge.BEGINNING and before is not None:
            items, before = items[1:], False
        while items and items[-1] is Edge.END and after is not None:
            items, after = items[:-1], False
        if items == [node]:
            raise HasConditionError
        if len(items) < 2:
            return self.write_at_edges(items[0] if items else EMPTY, before, after)
        first, *middle, last = items
        return "".join(
            (
                self.write_at_edges(first, before, None),
                *(self.write_at_edges(item, None, None) for item in middle),
                self.write_at_edges(last, None, after),
            )
        )

    def write_characters(self, atom: Characters) -> str:
        if not self._excluded or (has_quotes(atom) and not self._even_with_quotes):
            return super().write_characters(atom)
        if atom.properties:
            return f"[{super().write_characters(atom)}--[{write_ranges(self._excluded)}]]"
        return write_class(code_points.subtract(atom.ranges, self._excluded))


@lru_cache(maxsize=4096)
def has_condition(node: Node) -> bool:
    """Return whether a node has an anchor or look-around."""
    return any(isinstance(each, Edge | Look) for each in walk(node))
