"""Reads the pattern of Regex("...") as an expression, whose lexemes can then be made safe."""

import re
from collections.abc import Sequence as Places
from dataclasses import dataclass
from typing import NamedTuple

from completions.grammars.ebnf.expressions import EMPTY, Expression, Expressions
from completions.grammars.exceptions import GrammarError
from completions.regular import classes, code_points
from completions.regular.code_points import Ranges
from completions.regular.reader import Advice, Flags, Group, Reader, make_single
from completions.regular.syntax import Characters

MAX_NESTING = 250
MAX_COUNT = 100_000
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_JSON_ESCAPED: Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_INLINE_FLAGS = re.compile(r"\(\?([isu]+)\)")
_LOOKAHEAD = re.compile(r"\(\?[=!]")
_PIECES = re.compile(r"\\.|\[(?:[^\]\\]|\\.)*+\]?+|.", re.DOTALL)
_NEWLINE: Ranges = ((0x0A, 0x0A),)
_UNSUPPORTED = "\\{letter} is not supported in Regex"
_CATEGORY = "\\{letter} takes a general category, as in \\{letter}{Lu}"
_GROUP = re.compile(r"\((?:\?(?::|P?<[A-Za-z_]\w*>))?")


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


class ParsedPattern(NamedTuple):
    """A pattern's expression, and the offsets in the pattern of the look-aheads that it leaves
    out."""

    expression: Expression
    lookaheads: list[int]


def parse(source: Pattern, make: Expressions, flags: str, *, json_string: bool) -> ParsedPattern:
    """Read a pattern under flags, the letters i, s and u. With `json_string`, characters that a
    JSON string must escape are excluded. Raises GrammarError with the place in the grammar."""
    reader = _Reader(source, make, flags, _JSON_ESCAPED if json_string else ())
    return ParsedPattern(reader.read(), reader.lookaheads)


class _Reader(Reader[Expression]):
    advice = Advice(
        unopened_group="this ) has no matching (; write \\) for the character",
        unclosed_group="this ( is not closed; write a )",
        unclosed_class="this character class is not closed; write a ]",
        nothing_to_repeat=(
            "{character} has nothing to repeat; write \\{character} for the character"
        ),
        counts="write a repetition as {m}, {m,} or {m,n}",
        reversed_counts="the repetition {counts} has a minimum above its maximum; exchange them",
        reversed_range="this range is reversed; write the smaller character first, as in a-z",
        set_in_range="this range has a shorthand as its end; write it as in a-z",
        lone_backslash="the backslash at the end escapes nothing; write two for a backslash",
        code_point="\\{escape} is not a Unicode character; give another code point",
        escape="\\{letter} is not an escape; write the letter without the backslash",
    )
    shorthands = classes.make_shorthands(_SPACE)
    controls = classes.CONTROLS | {"0": 0x00, "a": 0x07, "e": 0x1B}
    refused = {
        **dict.fromkeys("bB", f"{_UNSUPPORTED}; write out what may stand there"),
        **dict.fromkeys(
            "k123456789", f"{_UNSUPPORTED}: it has no back-references; write out the text"
        ),
        "x": "\\x takes 2 hexadecimal digits, as in \\x41",
        "u": "\\u takes 4 hexadecimal digits, or up to 6 in braces, as in \\u0041 and \\u{1F600}",
        "c": "\\c takes a letter, as in \\cA",
        **dict.fromkeys("pP", _CATEGORY),
    }
    code_point = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
    property_name = re.compile(r"([pP])(?:\{(\w+)\}|(\w))")
    repeats_repetitions = True

    def __init__(self, source: Pattern, make: Expressions, flags: str, excluded: Ranges) -> None:
        super().__init__(source.pattern, make)
        self._source = source
        self._make = make
        self._excluded = excluded
        self.lookaheads: list[int] = []
        inline = self.match(_INLINE_FLAGS, 0)
        letters = flags + (inline[1] if inline is not None else "")
        self.flags = Flags(i="i" in letters, s="s" in letters)
        self.take("^")

    def make_error(self, message: str, position: int) -> GrammarError:
        return self._source.make_error(position, message)

    def open_group(self, groups: list[Group[Expression]]) -> Group[Expression] | None:
        start = self.position
        if _LOOKAHEAD.match(self.pattern, start):
            self._skip_lookahead()
            groups[-1].add(EMPTY)  # a repetition that follows repeats this only
            return None
        opening = self.match(_GROUP, start)
        assert opening is not None
        if self.pattern.startswith("?", opening.end()):
            message = "look-behind and flags inside a pattern are not supported; use (?:...)"
            raise self.make_error(message, start)
        if len(groups) > MAX_NESTING:
            message = f"nested deeper than {MAX_NESTING} parentheses; remove some"
            raise self.make_error(message, start)
        return Group(start, self.flags)

    def _skip_lookahead(self) -> None:
        """Read (?=...) or (?!...), which restricts no text in this dialect."""
        start = self.position
        self.lookaheads.append(start)
        level = 0
        for piece in _PIECES.finditer(self.pattern, start):
            level += {"(": 1, ")": -1}.get(piece[0], 0)
            if level == 0:
                self.position = piece.end()
                return
        raise self.make_error(self.advice.unclosed_group, start)

    def read_count(self, digits: str) -> int:
        if len(digits) > 6 or int(digits) > MAX_COUNT:
            message = f"the count {digits[:12]} is too large; the most is {MAX_COUNT}"
            raise self.make_error(message, self.position - 1)
        return int(digits)

    def read_atom(self, groups: list[Group[Expression]]) -> None:
        start = self.position
        if len(groups) == 1 and self.pattern[start:] == "$":
            self.position += 1
            return
        ranges = self._read_characters()
        if self._excluded:
            ranges = code_points.subtract(ranges, self._excluded)
            if not ranges:
                message = "a JSON string has this character only as an escape; write its escape"
                raise self.make_error(message, start)
        groups[-1].add(self._make.make_characters(ranges))

    def _read_characters(self) -> Ranges:
        """Read one element: a class, an escape, a dot, or a character."""
        start, character = self.position, self.pattern[self.position]
        if character == "[":
            return self.read_class().ranges
        if character == "\\":
            return self.fold(self.read_escape().ranges)
        if character in "^$":
            message = (
                f"{character} is supported only at the edge of the pattern; write \\{character}"
            )
            raise self.make_error(message, start)
        if character == "]":
            message = "this ] has no matching [; write \\] for the character"
            raise self.make_error(message, start)
        self.position += 1
        if character == ".":
            return code_points.ALL if self.flags.s else code_points.invert(_NEWLINE)
        return self.fold(make_single(ord(character)).ranges)

    def ends_class(self, items: list[Characters]) -> bool:
        if not items and self.pattern.startswith("]", self.position):
            message = "this character class is empty; write \\] for a bracket"
            raise self.make_error(message, self.pattern.rindex("[", 0, self.position))
        return super().ends_class(items)

    def is_refused(self, letter: str) -> bool:
        return letter.isalnum()

    def read_property(self, start: int, name: str, *, negated: bool) -> Characters:
        ranges = code_points.load_category(name)
        if not ranges:
            message = f"{name[:32]} is not a Unicode category; use one such as L, Lu or Nd"
            raise self.make_error(message, start)
        return Characters(code_points.invert(ranges) if negated else ranges)

    def fold(self, ranges: Ranges) -> Ranges:
        """Return the ranges, and the other case of their ASCII letters if case is ignored."""
        if not self.flags.i:
            return ranges
        more = list(ranges)
        for low, high in ranges:
            for first, last, shift in ((0x41, 0x5A, 0x20), (0x61, 0x7A, -0x20)):
                if low <= last and first <= high:
                    more.append((max(low, first) + shift, min(high, last) + shift))
        return code_points.merge(more)
