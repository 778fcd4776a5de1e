"""What the nodes of one tree share while they are lowered to parts: the model's tokens, and
diagnostics."""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from completions.grammars import tokens
from completions.grammars.compiler import Compiler, Translation
from completions.grammars.exceptions import Diagnostic, GrammarError
from completions.grammars.structural_tag.parts import (
    OneToken,
    Part,
    Terminal,
    make_chain,
    make_free_text,
    make_literal,
    make_loop,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token by id or text, and the pointer to it."""

    pointer: str
    token: int | str


P = TypeVar("P", bound=Part)
Ends = tuple[str | Token, ...]
"""The ends of the innermost enclosing tag: free text inside it contains none of these strings, and
free tokens none of these tokens."""


def _make_token(id: int) -> OneToken:
    return OneToken(((id, id),))


class Spelling:
    """Writer of the texts of a tree in a model's tokens.

    A client's structural tag holds only text. In the tree of a chat's answer, a delimiter that is a
    special token of the model means that token.
    """

    def __init__(self, delimiters: Sequence[str] | None, compiler: Compiler) -> None:
        """`delimiters` is None for a client's structural tag."""
        special = {} if delimiters is None else tokens.load_special_ids(compiler.tokens)
        self._ids = {token: special[token] for token in delimiters or () if token in special}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        ends = compiler.tokens.eos_token_ids if compiler.tokens else ()
        self._others = sorted(set(special.values()) - set(self._ids.values()) - set(ends))

    def spell(self, text: str) -> Part:
        """Return a text of the tree, with its special tokens as tokens."""
        if not self._ids:
            return make_literal(text)
        pieces: list[Part] = []
        end = 0
        for match in self._pattern.finditer(text):
            pieces += [make_literal(text[end : match.start()]), _make_token(self._ids[match[0]])]
            end = match.end()
        return make_chain([*pieces, make_literal(text[end:])])

    def make_free_text(
        self,
        pointer: str,
        excludes: Iterable[str],
        max_chars: int | None = None,
        *,
        mixed: bool = False,
    ) -> Part:
        """Return characters without the excluded texts; if `mixed`, also special tokens that are
        not delimiters."""
        # Only texts without special tokens can occur among plain characters.
        plain = [each for each in excludes if not (self._ids and self._pattern.search(each))]
        characters = make_free_text(pointer, plain, max_chars)
        if not (mixed and self._others):
            return characters
        others = OneToken(tuple(tokens.make_ranges(self._others)))
        return make_chain([make_loop(make_chain([characters, others]), 0, None), characters])

    def make_open_text(self, pointer: str, closing: str) -> Terminal:
        """Return characters up to a closing text."""
        text = self.make_free_text(pointer, [closing])
        assert isinstance(text, Terminal)
        return text


class Lowering:
    def __init__(
        self,
        compiler: Compiler,
        whitespace: str,
        delimiters: Sequence[str] | None = None,
        constrained: Callable[[], Translation] | None = None,
        *,
        is_careful: bool = True,
    ) -> None:
        """Only a chat's answer has `delimiters`, and `constrained`, which translates the
        client's constraint. A careful lowering compiles each schema by itself, to find the fault
        of the whole."""
        self.is_careful = is_careful
        self.compiler = compiler
        self.whitespace = whitespace
        self.constrained = constrained
        self.spelling = Spelling(delimiters, compiler)
        self.warnings: list[Diagnostic] = []
        self.relaxed: list[str] = []
        """Places in the request whose schemas cannot be expressed, so that any object is allowed
        there."""
        self.grammars: list[dict[str, object]] = []
        """Grammars that the parts use by name, as entries of llguidance's list."""
        self.rules: list[str] = []
        """Rules of Lark that the parts use by name. One grammar of many compiles faster."""
        self.num_arguments = 0
        """How many schemas are written as literals, each with rules of its own."""
        self._lowered: dict[Hashable, Any] = {}

    def once(self, key: Hashable, lower: "Callable[[Lowering], P]") -> P:
        """Return what `lower` makes. Nodes with the same key share it: a tool occurs twice in the
        tree, and each of its schemas takes a compilation."""
        if key not in self._lowered:
            self._lowered[key] = lower(self)
        part: P = self._lowered[key]
        return part

    def lower_token(self, pointer: str, token: int | str) -> Part:
        """Return one token by id or text. Raises GrammarError."""
        return _make_token(self._resolve_ids(pointer, [token])[0])

    def lower_other_tokens(
        self,
        pointer: str,
        excluded: Sequence[int | str],
        ends: Ends,
        min_count: int,
        max_count: int | None,
    ) -> Part:
        """Return a run of tokens that end neither the output nor the tag and are not excluded.

        Raises GrammarError.
        """
        own = [end.token for end in ends if isinstance(end, Token)]
        ranges = self._load_table(pointer).list_others(
            self._resolve_ids(pointer, [*excluded, *own])
        )
        if not ranges:
            raise GrammarError("no token is left; exclude fewer", pointer=pointer)
        return make_loop(OneToken(tuple(ranges), pointer), min_count, max_count)

    def _resolve_ids(self, pointer: str, tokens: Sequence[int | str]) -> list[int]:
        table = self._load_table(pointer)
        ids = []
        for each in tokens:
            id = each if isinstance(each, int) else table.ids.get(each)
            if id is None or id not in table.existing:
                max_id = max(table.existing)
                advice = f"give an id up to {max_id}, or the whole text of one token"
                message = f"this model has no token {str(each)[:64]}; {advice}"
                raise GrammarError(message, pointer=pointer)
            ids.append(id)
        return ids

    def _load_table(self, pointer: str) -> tokens.TokenTable:
        if self.compiler.tokens is None:
            raise GrammarError(
                "tokens need a model; send `model` beside the constraint", pointer=pointer
            )
        return tokens.load_table(self.compiler.tokens)


Node = Callable[[Lowering, Ends], Part]
"""A node whose fields were checked: lowers it to a part. Raises GrammarError."""
