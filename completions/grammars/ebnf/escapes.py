"""The text between the quotes of a literal and between the brackets of a character class."""

from collections.abc import Iterator
from typing import NamedTuple

from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import truncate
from completions.regular import code_points
from completions.regular.code_points import Ranges

_CONTROLS = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "0": "\0",
    "e": "\x1b",
}
_IN_LITERALS = _CONTROLS | {character: character for character in "\"\\/'?"}
_IN_CLASSES = _IN_LITERALS | {character: character for character in "^$.*+()[]{}|-"}
_SHORTHANDS = {
    "d": "0-9",
    "w": "A-Za-z0-9_",
    "s": r" \t\n\r\f\v",
    "D": "^0-9",
    "W": "^A-Za-z0-9_",
    "S": r"^ \t\n\r\f\v",
}
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = {"u": 4, "U": 8}


class _Character(NamedTuple):
    code_point: int
    is_dash: bool
    """Whether it is an unescaped -, which makes a range of its neighbours."""
    start: int


def parse_literal(text: str, start: int, end: int) -> str:
    """Return the string whose quotes enclose text[start:end]. Raises GrammarError."""
    characters = _iter_characters(text, start, end, _IN_LITERALS)
    return "".join(chr(character.code_point) for character in characters)


def find_positions(text: str, start: int, end: int) -> list[int]:
    """Return the offset in the text of each character of that string."""
    return [character.start for character in _iter_characters(text, start, end, _IN_LITERALS)]


def parse_class(text: str, start: int, end: int) -> Ranges:
    """Return the characters of the class whose brackets enclose text[start:end]. Raises
    GrammarError."""
    negated = text.startswith("^", start, end)
    characters = list(_iter_characters(text, start + negated, end, _IN_CLASSES))
    if not characters and not negated:
        raise GrammarError.at_offset(
            text, start - 1, "[] names no characters; [^] is any character"
        )
    ranges = []
    index = 0
    while index < len(characters):
        low = high = characters[index]
        if index + 2 < len(characters) and characters[index + 1].is_dash:
            high = characters[index + 2]
            index += 2
        index += 1
        if high.code_point < low.code_point:
            raise GrammarError.at_offset(
                text, low.start, "this range is reversed: write the smaller character first"
            )
        ranges.append((low.code_point, high.code_point))
    merged = code_points.merge(ranges)
    return code_points.invert(merged) if negated else merged


def _iter_characters(
    text: str, start: int, end: int, escapes: dict[str, str]
) -> Iterator[_Character]:
    position = start
    while position < end:
        begin = position
        if text[position] == "\\":
            code_point, position = _parse_escape(text, position, end, escapes)
            yield _Character(code_point, is_dash=False, start=begin)
        else:
            position += 1
            character = text[begin]
            yield _Character(ord(character), is_dash=character == "-", start=begin)


def _parse_escape(text: str, start: int, end: int, escapes: dict[str, str]) -> tuple[int, int]:
    """Return the code point of the escape at `start`, and where it ends."""
    letter = text[start + 1]
    if letter in escapes:
        return ord(escapes[letter]), start + 2
    if letter not in "xuU":
        if letter in _SHORTHANDS and escapes is _IN_CLASSES:
            message = f"\\{letter} is not known in this dialect; write [{_SHORTHANDS[letter]}]"
        else:
            message = f"unknown escape \\{letter}; write the character itself or \\u with digits"
        raise GrammarError.at_offset(text, start, message)
    digits = start + 2
    # As in XGrammar, \x takes all the digits that follow.
    limit = min(end, digits + _DIGITS.get(letter, end))
    stop = digits
    while stop < limit and text[stop] in _HEX:
        stop += 1
    num_digits = _DIGITS.get(letter)
    if stop == digits or (num_digits and stop - digits != num_digits):
        count = (
            f"exactly {num_digits} hexadecimal digits"
            if num_digits
            else "hexadecimal digits, as in \\x41"
        )
        message = f"\\{letter} takes {count}"
        raise GrammarError.at_offset(text, start, message)
    value = int(text[digits:stop], 16)
    if not code_points.is_character(value):
        hint = "\\x takes all the digits that follow; write it as \\u or \\U"
        if letter != "x":
            hint = "write those above U+FFFF as \\U"
        message = f"{truncate(text[start:stop])} is not a Unicode character; {hint}"
        raise GrammarError.at_offset(text, start, message)
    return value, stop
