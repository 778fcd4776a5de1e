"""Reads the pattern of Regex("...") as an expression, whose lexemes can then be made safe."""

import re
from collections.abc import Sequence as Places
from dataclasses import dataclass
from typing import NamedTuple

from completions.grammars import code_points
from completions.grammars.code_points import Ranges
from completions.grammars.ebnf.expressions import EMPTY, Expression, Expressions, Group
from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import truncate

MAX_NESTING = 250
MAX_COUNT = 100_000
_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_SHORTHANDS = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
    "D": code_points.invert(_DIGITS),
    "W": code_points.invert(_WORD),
    "S": code_points.invert(_SPACE),
}
_CONTROLS = {
    "n": 0x0A,
    "r": 0x0D,
    "t": 0x09,
    "f": 0x0C,
    "v": 0x0B,
    "0": 0x00,
    "a": 0x07,
    "e": 0x1B,
}
_JSON_ESCAPED: Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_INLINE_FLAGS = re.compile(r"\(\?([isu]+)\)")
_LOOKAHEAD = re.compile(r"\(\?[=!]")
_PIECES = re.compile(r"\\.|\[(?:[^\]\\]|\\.)*+\]?+|.", re.DOTALL)
_CONTROL = re.compile(r"c([A-Za-z])")
_CATEGORY = re.compile(r"([pP])(?:\{(\w+)\}|(\w))")
_NEWLINE: Ranges = ((0x0A, 0x0A),)
_CODE_POINT = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_UNKNOWN = "is not an escape; write the letter without the backslash"
_REFUSED = {
    **dict.fromkeys("bB", "is not supported in Regex; write out what may stand there"),
    **dict.fromkeys(
        "k123456789", "is not supported in Regex: it has no back-references; write out the text"
    ),
    "x": "takes 2 hexadecimal digits, as in \\x41",
    "u": "takes 4 hexadecimal digits, or up to 6 in braces, as in \\u0041 and \\u{1F600}",
    "c": "takes a letter, as in \\cA",
    "p": "takes a general category, as in \\p{Lu}",
    "P": "takes a general category, as in \\P{Lu}",
}
_COUNTS = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_GROUP = re.compile(r"\((?:\?(?::|P?<[A-Za-z_]\w*>))?")
_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern inside a grammar."""

    pattern: str
    text: str
    """The grammar."""
    positions: Places[int]
    """The offset in the grammar of each character of the pattern."""

    def make_error(self, position: int, message: str) -> GrammarError:
        offset = self.positions[min(position, len(self.positions) - 1)] if self.positions else 0
        return GrammarError.at_offset(self.text, offset, message)


class Flags(NamedTuple):
    ignore_case: bool
    """Whether ASCII letters match regardless of case."""
    dot_all: bool
    """Whether `.` matches a newline."""
    json_string: bool
    """Whether characters that a JSON string must escape are excluded."""


class ParsedPattern(NamedTuple):
    """A pattern's expression, and the offsets in the pattern of the look-aheads that it leaves
    out."""

    expression: Expression
    lookaheads: list[int]


def parse(source: Pattern, make: Expressions, flags: Flags) -> ParsedPattern:
    """Read a pattern. Raises GrammarError with the place in the grammar."""
    reader = _Reader(source, make, flags)
    return ParsedPattern(reader.read(), reader.lookaheads)


class _Reader:
    def __init__(self, source: Pattern, make: Expressions, flags: Flags) -> None:
        self._source = source
        self._pattern = source.pattern
        self._position = 0
        self._make = make
        self.lookaheads: list[int] = []
        inline = _INLINE_FLAGS.match(self._pattern)
        if inline is not None:
            self._position = inline.end()
        letters = inline[1] if inline is not None else ""
        self._ignore_case = flags.ignore_case or "i" in letters
        dot_all = flags.dot_all or "s" in letters
        self._dot = code_points.ALL if dot_all else code_points.invert(_NEWLINE)
        self._position += self._pattern.startswith("^", self._position)
        self._excluded = _JSON_ESCAPED if flags.json_string else ()

    def read(self) -> Expression:
        groups = [Group(self._make)]
        starts = [0]
        while self._position < len(self._pattern):
            start, character = self._position, self._pattern[self._position]
            if character == "(":
                if self._can_open(len(groups)):
                    groups.append(Group(self._make))
                    starts.append(start)
                else:
                    groups[-1].parts.append(EMPTY)  # a repetition that follows repeats this only
            elif character == ")":
                self._position += 1
                if len(groups) == 1:
                    raise self._source.make_error(
                        start, "this ) has no matching (; write \\) for the character"
                    )
                starts.pop()
                closed = groups.pop().close()
                groups[-1].parts.append(closed)
            elif character == "|":
                self._position += 1
                groups[-1].end_option()
            elif character in _BOUNDS or character == "{":
                self._parse_repeat(groups[-1])
            elif character == "$" and start == len(self._pattern) - 1 and len(groups) == 1:
                self._position += 1
            else:
                groups[-1].parts.append(self._make.make_characters(self._parse_allowed(start)))
        if len(groups) > 1:
            raise self._source.make_error(starts[-1], "this ( is not closed; write a )")
        return groups[0].close()

    def _skip_lookahead(self) -> None:
        """Read (?=...) or (?!...), which restricts no text in this dialect."""
        start = self._position
        self.lookaheads.append(start)
        level = 0
        for piece in _PIECES.finditer(self._pattern, start):
            level += {"(": 1, ")": -1}.get(piece[0], 0)
            if level == 0:
                self._position = piece.end()
                return
        raise self._source.make_error(start, "this ( is not closed; write a )")

    def _can_open(self, nesting: int) -> bool:
        """Read a construct that begins with a parenthesis. Returns whether it is a group."""
        start = self._position
        if _LOOKAHEAD.match(self._pattern, start):
            self._skip_lookahead()
            return False
        opening = _GROUP.match(self._pattern, start)
        assert opening is not None
        if self._pattern.startswith("?", opening.end()):
            message = "look-behind and flags inside a pattern are not supported; use (?:...)"
            raise self._source.make_error(start, message)
        if nesting > MAX_NESTING:
            raise self._source.make_error(
                start, f"nested deeper than {MAX_NESTING} parentheses; remove some"
            )
        self._position = opening.end()
        return True

    def _parse_repeat(self, group: Group) -> None:
        """Read a quantifier. A ? after it makes it lazy, which changes nothing here."""
        start = self._position
        if not group.parts:
            character = self._pattern[start]
            message = f"{character} has nothing to repeat; write \\{character} for the character"
            raise self._source.make_error(start, message)
        if self._pattern[start] == "{":
            low, high = self._parse_counts()
        else:
            low, high = _BOUNDS[self._pattern[start]]
            self._position += 1
        if self._pattern.startswith("?", self._position):
            self._position += 1
        group.parts[-1] = self._make.make_repeat(group.parts[-1], low, high)

    def _parse_counts(self) -> tuple[int, int | None]:
        start = self._position
        match = _COUNTS.match(self._pattern, start)
        if match is None:
            raise self._source.make_error(start, "write a repetition as {m}, {m,} or {m,n}")
        self._position = match.end()
        low = self._parse_count(match[1])
        high = self._parse_count(match[3]) if match[3] else None if match[2] else low
        if high is not None and high < low:
            raise self._source.make_error(
                start,
                f"the repetition {{{low},{high}}} has a minimum above its maximum; exchange them",
            )
        return low, high

    def _parse_count(self, digits: str) -> int:
        if len(digits) > 6 or int(digits) > MAX_COUNT:
            message = f"the count {digits[:12]} is too large; the most is {MAX_COUNT}"
            raise self._source.make_error(self._position - 1, message)
        return int(digits)

    def _parse_allowed(self, start: int) -> Ranges:
        """Read one element, without what a JSON string must escape if that is excluded."""
        ranges = self._parse_characters()
        if self._excluded:
            ranges = code_points.subtract(ranges, self._excluded)
            if not ranges:
                message = "a JSON string has this character only as an escape; write its escape"
                raise self._source.make_error(start, message)
        return ranges

    def _parse_characters(self) -> Ranges:
        """Read one element: a class, an escape, a dot, or a character."""
        character = self._pattern[self._position]
        if character == "[":
            return self._parse_class()
        if character in "^$":
            message = (
                f"{character} is supported only at the edge of the pattern; write \\{character}"
            )
            raise self._source.make_error(self._position, message)
        if character == "]":
            raise self._source.make_error(
                self._position, "this ] has no matching [; write \\] for the character"
            )
        if character == ".":
            self._position += 1
            return self._dot
        return self._fold_case(self._parse_one(in_class=False))

    def _parse_class(self) -> Ranges:
        start = self._position
        self._position += 1
        negated = self._pattern.startswith("^", self._position)
        self._position += negated
        ranges: list[tuple[int, int]] = []
        while not self._pattern.startswith("]", self._position):
            if self._position >= len(self._pattern):
                raise self._source.make_error(
                    start, "this character class is not closed; write a ]"
                )
            ranges += self._parse_class_item()
        if not ranges:
            raise self._source.make_error(
                start, "this character class is empty; write \\] for a bracket"
            )
        self._position += 1
        members = self._fold_case(code_points.merge(ranges))
        return code_points.invert(members) if negated else members

    def _parse_class_item(self) -> Ranges:
        """Read one character, a shorthand, or a range of a class."""
        start = self._position
        low = self._parse_one(in_class=True)
        dash = self._pattern[self._position : self._position + 2]
        if not dash.startswith("-") or dash in ("-", "-]") or not _is_single(low):
            return low
        self._position += 1
        high = self._parse_one(in_class=True)
        if not _is_single(high) or high[0][0] < low[0][0]:
            raise self._source.make_error(
                start, "this range is reversed or has a shorthand as its end; write it as in a-z"
            )
        return code_points.merge([(low[0][0], high[0][0])])

    def _parse_one(self, *, in_class: bool) -> Ranges:
        start = self._position
        self._position += 1
        character = self._pattern[start]
        if character != "\\":
            return ((ord(character), ord(character)),)
        if self._position >= len(self._pattern):
            raise self._source.make_error(
                start, "the backslash at the end escapes nothing; write two for a backslash"
            )
        letter = self._pattern[self._position]
        self._position += 1
        if letter in _SHORTHANDS:
            return _SHORTHANDS[letter]
        if letter == "b" and in_class:
            return ((0x08, 0x08),)
        if letter in _CONTROLS:
            return ((_CONTROLS[letter], _CONTROLS[letter]),)
        if coded := self._parse_code(start):
            return coded
        if letter.isalnum():
            raise self._source.make_error(start, f"\\{letter} {_REFUSED.get(letter, _UNKNOWN)}")
        return ((ord(letter), ord(letter)),)

    def _parse_code(self, start: int) -> Ranges:
        """Read an escape of several characters; read nothing if there is none."""
        if match := _CODE_POINT.match(self._pattern, start + 1):
            self._position = match.end()
            value = int(match[1] or match[2] or match[3], 16)
            if code_points.is_character(value):
                return ((value, value),)
            raise self._source.make_error(
                start,
                f"\\{truncate(match[0])} is not a Unicode character; give another code point",
            )
        if match := _CONTROL.match(self._pattern, start + 1):
            self._position = match.end()
            return ((ord(match[1]) % 32, ord(match[1]) % 32),)
        if match := _CATEGORY.match(self._pattern, start + 1):
            self._position = match.end()
            return self._parse_category(start, match[2] or match[3], negated=match[1] == "P")
        return ()

    def _parse_category(self, start: int, name: str, *, negated: bool) -> Ranges:
        ranges = code_points.load_category(name)
        if not ranges:
            message = f"{name[:32]} is not a Unicode category; use one such as L, Lu or Nd"
            raise self._source.make_error(start, message)
        return code_points.invert(ranges) if negated else ranges

    def _fold_case(self, ranges: Ranges) -> Ranges:
        """Return the ranges, and the other case of their ASCII letters if case is ignored."""
        if not self._ignore_case:
            return ranges
        more = list(ranges)
        for low, high in ranges:
            for first, last, shift in ((0x41, 0x5A, 0x20), (0x61, 0x7A, -0x20)):
                if low <= last and first <= high:
                    more.append((max(low, first) + shift, min(high, last) + shift))
        return code_points.merge(more)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
