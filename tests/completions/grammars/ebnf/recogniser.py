"""The language of a parsed grammar by definition: what each expression matches, at each position.

Slow, and independent of everything that the translation does after parsing.
"""

from collections.abc import Iterator

from completions.grammars.ebnf.expressions import (
    Alternation,
    Characters,
    Concatenation,
    Expression,
    FreeText,
    Literal,
    Reference,
    Repeat,
    Substring,
    walk,
)
from completions.grammars.ebnf.rules import ROOT, Grammar


class Recogniser:
    """Of one text. Grows the sets of ends from nothing until all definitions hold."""

    def __init__(self, grammar: Grammar, text: str) -> None:
        self._grammar = grammar
        self._text = text
        nodes = list(walk(grammar.rules.values()))
        positions = range(len(text) + 1)
        self._ends: dict[Expression, list[set[int]]] = {
            node: [set() for _ in positions] for node in nodes
        }
        changed = True
        while changed:
            changed = False
            for node in nodes:
                for start in positions:
                    found = set(self._match(node, start))
                    changed |= found != self._ends[node][start]
                    self._ends[node][start] = found

    def accepts(self) -> bool:
        return len(self._text) in self._ends[self._grammar.rules[ROOT]][0]

    def _match(self, node: Expression, start: int) -> Iterator[int]:
        """Where a match of the expression from `start` may end, as far as is known."""
        match node:
            case Literal(text):
                return iter([start + len(text)] if self._text.startswith(text, start) else [])
            case Characters(ranges):
                here = map(ord, self._text[start : start + 1])
                return (start + 1 for each in here for low, high in ranges if low <= each <= high)
            case Reference(name):
                return iter(self._ends[self._grammar.rules[name]][start])
            case Alternation(options):
                return (end for option in options for end in self._ends[option][start])
            case Concatenation(parts):
                return iter(self._match_parts(parts, {start}))
            case Repeat():
                return self._match_repeat(node, start)
            case Substring(chunks):
                return self._match_substring(chunks, start)
            case FreeText():
                return self._match_free_text(node, start)
        raise TypeError(node)

    def _match_parts(self, parts: tuple[Expression, ...], starts: set[int]) -> set[int]:
        for part in parts:
            starts = {end for start in starts for end in self._ends[part][start]}
        return starts

    def _match_repeat(self, node: Repeat, start: int) -> Iterator[int]:
        # Rounds past the text's length repeat the empty text only.
        most = node.low + len(self._text) + 1
        most = most if node.high is None else min(most, node.high)
        reached = {start}
        for count in range(most + 1):
            if count >= node.low:
                yield from reached
            reached = self._match_parts((node.body,), reached)
            if not reached:
                break

    def _match_substring(self, chunks: tuple[str, ...], start: int) -> Iterator[int]:
        for first in range(len(chunks) + 1):
            for last in range(first, len(chunks) + 1):
                run = "".join(chunks[first:last])
                if self._text.startswith(run, start):
                    yield start + len(run)

    def _match_free_text(self, node: FreeText, start: int) -> Iterator[int]:
        for end in range(start, len(self._text) + 1):
            free = self._text[start:end]
            if node.end:
                if not free.endswith(node.end):
                    continue
                free = free[:-1]
            if not any(string in free for string in node.avoided):
                yield end
