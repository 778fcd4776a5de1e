"""The model's tokens in a grammar, by id or by text: Token(5), ExcludeToken("<|im_start|>")."""

from collections.abc import Iterable

from completions.grammars import tokens
from completions.grammars.complaints import shortened
from completions.grammars.ebnf.expressions import Expression, Expressions
from completions.grammars.ebnf.lexer import Cursor, Token
from completions.grammars.tokens import TokenSource, TokenTable


class Vocabulary:
    """Finds the tokens of one model, and makes expressions of them."""

    def __init__(self, cursor: Cursor, make: Expressions, source: TokenSource | None) -> None:
        self._cursor = cursor
        self._make = make
        self._source = source

    def id(self, named: object, place: Token) -> int:
        """The token with an id or a text. Raises GrammarError at its place in the grammar."""
        if isinstance(named, bool) or not isinstance(named, int | str):
            raise self._cursor.error(place, "this must be a token's id or its text in quotes")
        table = self._table(place)
        id = named if isinstance(named, int) else table.ids.get(named)
        if id is None or id not in table.existing:
            shown = repr(named[:64]) if isinstance(named, str) else shortened(str(named))
            message = f"this model has no token {shown}; its ids end at {max(table.existing)}"
            raise self._cursor.error(place, message)
        return id

    def written_id(self, named: object, place: Token) -> int:
        """The same for a token that stands in the text, and so must not be one that ends it."""
        id = self.id(named, place)
        if id in self._table(place).eos_token_ids:
            shown = shortened(str(named))
            message = f"the token {shown} ends the text wherever the grammar does; leave it out"
            raise self._cursor.error(place, message)
        return id

    def some(self, ids: Iterable[int]) -> Expression:
        """One of these tokens."""
        return self._tokens(tokens.ranges(set(ids)))

    def all_but(self, place: Token, ids: Iterable[int]) -> Expression:
        """One token that neither ends the text nor is one of these."""
        found = self._table(place).all_but(ids)
        if not found:
            raise self._cursor.error(place, "no token is left; exclude fewer")
        return self._tokens(found)

    def _tokens(self, ids: list[tuple[int, int]]) -> Expression:
        assert self._source is not None
        table = tokens.load_table(self._source)
        return self._make.tokens(tuple(ids), table.leads(ids), table.is_any_text(ids))

    def _table(self, place: Token) -> TokenTable:
        if self._source is None:
            raise self._cursor.error(place, "tokens by id need a model; send `model` beside it")
        return tokens.load_table(self._source)
