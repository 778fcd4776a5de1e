"""What the nodes of one tree share while they are lowered to parts: the model's tokens, and
findings."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from completions.grammars import tokens
from completions.grammars.compiler import Compiler, Translated
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.structural_tag.parts import (
    OneToken,
    Part,
    Terminal,
    chain,
    free_text,
    literal,
    loop,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token by id or text, and the pointer to it."""

    pointer: str
    token: int | str


Ends = tuple[str | Token, ...]
"""The ends of the innermost enclosing tag: free text inside it contains none of these strings, and
free tokens none of these tokens."""


def _token(id: int) -> OneToken:
    return OneToken(((id, id),))


class Spelling:
    """Writes the texts of a tree in a model's tokens.

    A client's structural tag holds only text. In the tree of a chat's answer, a mark that is a
    special token of the model means that token.
    """

    def __init__(self, marks: Sequence[str] | None, compiler: Compiler) -> None:
        """`marks` is None for a client's structural tag."""
        special = {} if marks is None else tokens.special_ids(compiler.tokens)
        self._ids = {mark: special[mark] for mark in marks or () if mark in special}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        ends = compiler.tokens.eos_token_ids if compiler.tokens else ()
        self._others = sorted(set(special.values()) - set(self._ids.values()) - set(ends))

    def text(self, text: str) -> Part:
        """A text of the tree, with its special tokens as tokens."""
        if not self._ids:
            return literal(text)
        pieces: list[Part] = []
        end = 0
        for found in self._pattern.finditer(text):
            pieces += [literal(text[end : found.start()]), _token(self._ids[found[0]])]
            end = found.end()
        return chain([*pieces, literal(text[end:])])

    def free_text(
        self, pointer: str, excludes: Iterable[str], most: int | None = None, *, mixed: bool = False
    ) -> Part:
        """Characters without the excluded texts; if `mixed`, also special tokens that are not
        marks."""
        # Only texts without special tokens can occur among plain characters.
        plain = [each for each in excludes if not (self._ids and self._pattern.search(each))]
        characters = free_text(pointer, plain, most)
        if not (mixed and self._others):
            return characters
        others = OneToken(tuple(tokens.ranges(self._others)))
        return chain([loop(chain([characters, others]), 0, None), characters])

    def open_text(self, pointer: str, closing: str) -> Terminal:
        """Characters up to a closing text."""
        found = self.free_text(pointer, [closing])
        assert isinstance(found, Terminal)
        return found


class Lowering:
    def __init__(
        self,
        compiler: Compiler,
        whitespace: str,
        marks: Sequence[str] | None = None,
        constrained: Callable[[], Translated] | None = None,
    ) -> None:
        """Only a chat's answer has `marks`, and `constrained`, which translates the client's
        constraint."""
        self.compiler = compiler
        self.whitespace = whitespace
        self.constrained = constrained
        self.spelling = Spelling(marks, compiler)
        self.warnings: list[Finding] = []
        self.loosened: list[str] = []
        """Places in the request whose schemas cannot be expressed, so that any object is allowed
        there."""
        self.grammars: list[dict[str, Any]] = []
        """Grammars that the parts use by name, as entries of llguidance's list."""

    def token(self, pointer: str, named: int | str) -> Part:
        """One token by id or text. Raises GrammarError."""
        return _token(self._ids(pointer, [named])[0])

    def other_tokens(
        self,
        pointer: str,
        excluded: Sequence[int | str],
        ends: Ends,
        least: int,
        most: int | None,
    ) -> Part:
        """A run of tokens that end neither the output nor the tag and are not excluded.

        Raises GrammarError.
        """
        own = [end.token for end in ends if isinstance(end, Token)]
        ranges = self._table(pointer).all_but(self._ids(pointer, [*excluded, *own]))
        if not ranges:
            raise GrammarError("no token is left; exclude fewer", pointer=pointer)
        return loop(OneToken(tuple(ranges), pointer), least, most)

    def _ids(self, pointer: str, named: Sequence[int | str]) -> list[int]:
        table = self._table(pointer)
        found = []
        for each in named:
            id = each if isinstance(each, int) else table.ids.get(each)
            if id is None or id not in table.existing:
                most = max(table.existing)
                advice = f"give an id up to {most}, or the whole text of one token"
                message = f"this model has no token {str(each)[:64]}; {advice}"
                raise GrammarError(message, pointer=pointer)
            found.append(id)
        return found

    def _table(self, pointer: str) -> tokens.TokenTable:
        if self.compiler.tokens is None:
            raise GrammarError(
                "tokens need a model; send `model` beside the constraint", pointer=pointer
            )
        return tokens.load_table(self.compiler.tokens)


Node = Callable[[Lowering, Ends], Part]
"""A node whose fields were checked: lowers it to a part. Raises GrammarError."""
