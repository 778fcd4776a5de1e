"""How the texts of a tree are written in a model's tokens.

A client's structural tag speaks of text alone. In the tree of a chat's answer, a mark that is a
special token of the model means that token, wherever a text of the tree holds it.
"""

import re
from collections.abc import Iterable, Sequence

from completions.grammars import tokens
from completions.grammars.compiler import Compiler
from completions.grammars.structural_tag.parts import (
    NONE,
    Opaque,
    Part,
    Terminal,
    chain,
    free_text,
    literal,
    loop,
)


class Spelling:
    def __init__(self, marks: Sequence[str] | None, compiler: Compiler) -> None:
        """`marks` is None for a client's structural tag."""
        special = {} if marks is None else tokens.special_ids(compiler.tokens)
        self._ids = {mark: special[mark] for mark in marks or () if mark in special}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        ends = compiler.tokens.eos_token_ids if compiler.tokens else ()
        self._others = sorted(set(special.values()) - set(self._ids.values()) - set(ends))

    def text(self, text: str) -> Part:
        """A text of the tree, its special tokens as tokens."""
        if not self._ids:
            return literal(text)
        pieces: list[Part] = []
        end = 0
        for found in self._pattern.finditer(text):
            pieces += [literal(text[end : found.start()]), token(self._ids[found[0]])]
            end = found.end()
        return chain([*pieces, literal(text[end:])])

    def characters_of(self, texts: Iterable[str]) -> list[str]:
        """Those of the texts that are written in characters alone."""
        return [text for text in texts if not (self._ids and self._pattern.search(text))]

    def free_text(
        self, pointer: str, excludes: Iterable[str], most: int | None = None, *, mixed: bool = False
    ) -> Part:
        """Characters among which none of the excluded texts stands; if `mixed`, also special
        tokens that are no marks."""
        characters = free_text(pointer, self.characters_of(excludes), most)
        if not (mixed and self._others):
            return characters
        others = Opaque(f"<[{','.join(map(str, self._others))}]>", NONE)
        return chain([loop(chain([characters, others]), 0, None), characters])

    def open_text(self, pointer: str, closing: str) -> Terminal:
        """Characters up to a closing text."""
        found = self.free_text(pointer, [closing])
        assert isinstance(found, Terminal)
        return found


def token(id: int) -> Opaque:
    """One special token."""
    return Opaque(f"<[{id}]>", NONE)
