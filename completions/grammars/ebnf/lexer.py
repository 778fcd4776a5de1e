"""EBNF text cut into tokens."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from completions.grammars.exceptions import GrammarError

_NAME = r"[A-Za-z_.-][A-Za-z0-9_.-]*"
_TOKEN = re.compile(
    rf"""(?P<space>(?:[ \t\r\n]|\#[^\r\n]*)+)
    | (?P<define>::=)
    | (?P<name>{_NAME})
    | (?P<number>[0-9]+)
    | (?P<literal>"(?:[^"\\\r\n]|\\[^\r\n])*")
    | (?P<class>\[(?:[^\]\\\r\n]|\\[^\r\n])*\])
    | (?P<lookahead>\(=)
    | (?P<mark>[()|*+?{{}},=])""",
    re.VERBOSE,
)
_LARK = re.compile(r"\s*(%llguidance\b|start\s*:(?!:=))")


class Token(NamedTuple):
    kind: str
    """define, name, number, literal, class, lookahead, mark or end."""
    text: str
    start: int
    """Offset of its first character."""
    begins_line: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Cursor:
    """A position among the tokens of a text. Raises GrammarError for text that is not a token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = list(_tokenize(text))
        self._index = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._index]

    def peek(self, distance: int) -> Token:
        return self._tokens[min(self._index + distance, len(self._tokens) - 1)]

    def next(self) -> Token:
        token = self.token
        if token.kind != "end":
            self._index += 1
        return token

    def take(self, text: str) -> bool:
        """Read the next token if it is this text. Returns whether it is."""
        taken = self.token.text == text
        if taken:
            self.next()
        return taken

    def make_error(self, token: Token, message: str) -> GrammarError:
        return GrammarError.at_offset(self.text, token.start, message)


def _tokenize(text: str) -> Iterator[Token]:
    """Yield all tokens except white space and comments, then one of kind `end`."""
    if token_match := _LARK.match(text):
        message = "this is Lark, not EBNF: write rules as name ::= ..., or send the text as grammar"
        raise GrammarError.at_offset(text, token_match.start(1), message)
    position, begins_line = 0, True
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise GrammarError.at_offset(text, position, _explain(text, position))
        kind = str(match.lastgroup)
        if kind == "space":
            begins_line |= "\n" in match[0] or "\r" in match[0]
        else:
            yield Token(kind, match[0], position, begins_line)
            begins_line = False
        position = match.end()
    yield Token("end", "", position, begins_line)


_NO_OPERATORS = "this dialect has no such operator; write out the alternatives"
_ADVICE = {
    "/": 'write a pattern as Regex("..."), and a comment after #',
    "<": 'write a token as Token("<...>"), and text to match in double quotes',
    "%": "this dialect has no directives; send Lark as grammar with type lark",
    ";": "a rule ends where the next one begins; remove the ;",
    **dict.fromkeys("&~!", _NO_OPERATORS),
}
"""What to write instead of what begins nothing in this dialect."""


def _explain(text: str, position: int) -> str:
    character = text[position]
    if character == '"':
        return 'this string does not end on its line; write a newline as \\n and a quote as \\"'
    if character == "[":
        return "this character class does not end on its line; write a newline as \\n"
    if character == ":":
        return "write a rule as name ::= ..."
    if character == "'":
        return 'write strings in double quotes, as in "text"'
    if character.isalpha():
        return "a rule name consists of ASCII letters, digits, _, - and ."
    advice = _ADVICE.get(character, "write text to match in double quotes")
    return f"unexpected {character!r}; {advice}"
