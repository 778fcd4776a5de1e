"""The model's tokens in a grammar, by id or by text: Token(5), ExcludeToken("<|im_start|>")."""

from collections.abc import Iterable

from completions.grammars import tokens
from completions.grammars.ebnf.expressions import Expression, Expressions
from completions.grammars.ebnf.lexer import Cursor, Token
from completions.grammars.messages import truncate
from completions.grammars.tokens import TokenSource, TokenTable


class Vocabulary:
    """Finder of the tokens of one model, and makes expressions of them."""

    def __init__(self, cursor: Cursor, make: Expressions, source: TokenSource | None) -> None:
        self._cursor = cursor
        self._make = make
        self._source = source

    def resolve_id(self, name: object, token: Token) -> int:
        """Return the token with an id or a text. Raises GrammarError at its place in the
        grammar."""
        if isinstance(name, bool) or not isinstance(name, int | str):
            raise self._cursor.make_error(token, "this must be a token's id or its text in quotes")
        table = self._load_table(token)
        id = name if isinstance(name, int) else table.ids.get(name)
        if id is None or id not in table.existing:
            quoted = repr(name[:64]) if isinstance(name, str) else truncate(str(name))
            message = f"this model has no token {quoted}; its ids end at {max(table.existing)}"
            raise self._cursor.make_error(token, message)
        return id

    def parse_id(self, name: object, token: Token) -> int:
        """Return the same for a token that stands in the text, and so must not be one that ends
        it."""
        id = self.resolve_id(name, token)
        if id in self._load_table(token).eos_token_ids:
            quoted = truncate(str(name))
            message = f"the token {quoted} ends the text wherever the grammar does; leave it out"
            raise self._cursor.make_error(token, message)
        return id

    def make_tokens(self, ids: Iterable[int]) -> Expression:
        """Return one of these tokens."""
        return self._make_expression(tokens.make_ranges(set(ids)))

    def make_other_tokens(self, token: Token, ids: Iterable[int]) -> Expression:
        """Return one token that neither ends the text nor is one of these."""
        others = self._load_table(token).list_others(ids)
        if not others:
            raise self._cursor.make_error(token, "no token is left; exclude fewer")
        return self._make_expression(others)

    def _make_expression(self, ids: list[tuple[int, int]]) -> Expression:
        assert self._source is not None
        table = tokens.load_table(self._source)
        return self._make.make_tokens(tuple(ids), table.find_leads(ids), table.is_any_text(ids))

    def _load_table(self, token: Token) -> TokenTable:
        if self._source is None:
            raise self._cursor.make_error(
                token, "tokens by id need a model; send `model` beside it"
            )
        return tokens.load_table(self._source)
