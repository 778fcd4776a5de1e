"""Reads a pattern as ECMA-262, 22.2.1, with the flag u.

It also takes what other dialects add without changing the meaning of anything else: escaped
punctuation, a lone `}` or `]`, `(?P<name>...)`, and the flags i, m and s for a group, or for the
rest of one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from completions.grammars import code_points
from completions.grammars.code_points import Ranges
from completions.grammars.messages import PATTERN_ADVICE
from completions.grammars.patterns import classes
from completions.grammars.patterns.syntax import (
    Characters,
    Edge,
    Look,
    Node,
    Repeat,
    make_choice,
    make_sequence,
)

MAX_COUNT = 10**6
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNTS = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_GROUP = re.compile(
    r"\((?:\?(?:(?P<look><?[=!])|(?P<plain>:)|P?<(?P<name>[\w$]+)>"
    r"|(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]*))?(?P<end>[:)])))?"
)
_PAIR = re.compile(r"u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_CODE_POINT = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]+)\}")
_PROPERTY = re.compile(r"([pP])\{([\w=]+)\}")
_CONTROL = re.compile(r"c([A-Za-z])")
_POSIX_CLASS = re.compile(r"\[\^?\[:\^?\w+:\]")
_REFUSED = {
    "A": "\\A is not in ECMA-262; write ^",
    "Z": "\\Z is not in ECMA-262; write $",
    "z": "\\z is not in ECMA-262; write $",
    "k": PATTERN_ADVICE["backreferences are not supported"],
    **dict.fromkeys("123456789", PATTERN_ADVICE["backreferences are not supported"]),
    "0": "an octal escape is not in ECMA-262; write one as in \\x00",
    "c": "\\c takes a letter, as in \\cA",
    **dict.fromkeys("xu", PATTERN_ADVICE["invalid hexadecimal digit"]),
    **dict.fromkeys("pP", PATTERN_ADVICE["Unicode property not found"]),
}
_GROUP_ADVICE = "write a group as (...), (?:...) or (?<name>...)"
_POSIX_ADVICE = "this ] has no matching [: [:alpha:] is not in ECMA-262; write [a-zA-Z]"
_FLAGS_ADVICE = "the flags of a group are i, m and s, as in (?i:...); leave out the others"
_WORD_CHARACTER = Characters(classes.WORD)


class PatternSyntaxError(Exception):
    """A pattern that cannot be read, and what to write instead."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


@dataclass(frozen=True, slots=True)
class _Flags:
    i: bool = False
    m: bool = False
    s: bool = False


@dataclass(slots=True)
class _Group:
    """An open parenthesis: what was read inside it so far."""

    start: int
    outer: _Flags
    close: Callable[[Node], Node]
    options: list[Node] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    is_repeatable: bool = False
    """Whether a quantifier may follow the last item."""

    def add(self, item: Node) -> None:
        self.items.append(item)
        self.is_repeatable = not isinstance(item, Look | Edge)

    def end_option(self) -> None:
        self.options.append(make_sequence(self.items))
        self.items, self.is_repeatable = [], False

    def build(self) -> Node:
        self.end_option()
        return self.close(make_choice(self.options))


@lru_cache(maxsize=512)
def read(pattern: str) -> Node:
    """Return the pattern, to be searched in a text. Raises PatternSyntaxError."""
    return _Reader(pattern).read()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._flags = _Flags()

    def read(self) -> Node:
        groups = [_Group(0, self._flags, lambda node: node)]
        while self._position < len(self._pattern):
            start, character = self._position, self._pattern[self._position]
            group = groups[-1]
            if character == "(":
                if (opened := self._open()) is not None:
                    groups.append(opened)
            elif character == ")":
                if len(groups) == 1:
                    raise self._make_error("unopened group", start)
                self._position += 1
                closed = groups.pop()
                self._flags = closed.outer
                groups[-1].add(closed.build())
            elif character == "|":
                self._position += 1
                group.end_option()
            elif character in _BOUNDS or character == "{":
                self._parse_repeat(group)
            else:
                group.add(self._parse_atom())
        if len(groups) > 1:
            raise self._make_error("unclosed group", groups[-1].start)
        return groups[0].build()

    def _make_error(self, problem: str, position: int) -> PatternSyntaxError:
        return PatternSyntaxError(PATTERN_ADVICE.get(problem, problem), position)

    def _open(self) -> _Group | None:
        """Read the beginning of a group; None if flags hold for the rest of the open group."""
        start = self._position
        match = _GROUP.match(self._pattern, start)
        if match is None or self._pattern.startswith("?", match.end()):
            raise self._make_error(_GROUP_ADVICE, start)
        self._position = match.end()
        outer = self._flags
        if look := match["look"]:
            ahead, negated = "<" not in look, "!" in look
            return _Group(start, outer, lambda node: Look(node, ahead, negated))
        if match["end"]:
            self._set_flags(start, match["on"], match["off"] or "")
            if match["end"] == ")":
                return None
        return _Group(start, outer, lambda node: node)

    def _set_flags(self, start: int, on: str, off: str) -> None:
        if not on + off or set(on + off) - set("ims"):
            raise self._make_error(_FLAGS_ADVICE, start)
        if len(set(on + off)) < len(on + off):
            raise self._make_error("duplicate flag", start)
        self._flags = replace(
            self._flags, **dict.fromkeys(on, True), **dict.fromkeys(set(off) - set(on), False)
        )

    def _parse_repeat(self, group: _Group) -> None:
        """Read a quantifier. A ? after it makes it lazy, which changes no match as a whole."""
        start = self._position
        if self._pattern[start] == "{":
            match = _COUNTS.match(self._pattern, start)
            if match is None:
                raise self._make_error("repetition quantifier expects a valid decimal", start)
            low = _parse_count(match[1])
            high = _parse_count(match[3]) if match[3] else None if match[2] else low
            self._position = match.end()
        else:
            low, high = _BOUNDS[self._pattern[start]]
            self._position += 1
        if not group.is_repeatable:
            raise self._make_error("repetition operator missing expression", start)
        if high is not None and high < low:
            raise self._make_error(
                "invalid repetition count range, the start must be <= the end", start
            )
        if self._pattern.startswith("?", self._position):
            self._position += 1
        group.items[-1] = Repeat(group.items[-1], low, high)
        group.is_repeatable = False

    def _parse_atom(self) -> Node:
        """Read an assertion, or one character: a class, an escape, a dot, or itself."""
        start = self._position
        character = self._pattern[start]
        self._position += 1
        if character == "[":
            return self._parse_class(start)
        if character == ".":
            return Characters(code_points.ALL if self._flags.s else classes.DOT)
        if character in "^$":
            return self._parse_edge(character == "^")
        if character == "]" and _POSIX_CLASS.search(self._pattern):
            raise self._make_error(_POSIX_ADVICE, start)
        if character != "\\":
            return self._fold_case(((ord(character), ord(character)),))
        if (letter := self._pattern[self._position : self._position + 1]) in ("b", "B") and letter:
            self._position += 1
            return _make_word_edge(negated=letter == "B")
        atom = self._parse_escape(start, in_class=False)
        return atom if atom.properties else self._fold_case(atom.ranges)

    def _parse_edge(self, beginning: bool) -> Node:
        edge = Edge.BEGINNING if beginning else Edge.END
        if not self._flags.m:
            return edge
        return make_choice((edge, Look(Characters(classes.LINE_ENDS), ahead=not beginning)))

    def _fold_case(self, ranges: Ranges) -> Characters:
        return Characters(classes.fold(ranges) if self._flags.i else code_points.merge(ranges))

    def _parse_class(self, start: int) -> Characters:
        negated = self._pattern.startswith("^", self._position)
        self._position += negated
        items: list[Characters] = []
        while not self._pattern.startswith("]", self._position):
            if self._position >= len(self._pattern):
                raise self._make_error("unclosed character class", start)
            items.append(self._parse_class_item())
        self._position += 1
        ranges = self._fold_case(tuple(r for item in items for r in item.ranges)).ranges
        if properties := tuple(each for item in items for each in item.properties):
            return Characters(ranges, properties, negated)
        return Characters(code_points.invert(ranges) if negated else ranges)

    def _parse_class_item(self) -> Characters:
        """Read one character, a set, or a range of a class."""
        start = self._position
        low = self._parse_class_character()
        dash = self._pattern[self._position : self._position + 2]
        if not dash.startswith("-") or dash in ("-", "-]"):
            return low
        self._position += 1
        high = self._parse_class_character()
        if not (_is_single(low) and _is_single(high)):
            raise self._make_error("invalid range boundary, must be a literal", start)
        first, last = low.ranges[0][0], high.ranges[0][0]
        if last < first:
            problem = "invalid character class range, the start must be <= the end"
            raise self._make_error(problem, start)
        return Characters(((first, last),))

    def _parse_class_character(self) -> Characters:
        start = self._position
        if start >= len(self._pattern):
            return Characters(())
        self._position += 1
        character = self._pattern[start]
        if character == "\\":
            return self._parse_escape(start, in_class=True)
        return Characters(((ord(character), ord(character)),))

    def _parse_escape(self, start: int, *, in_class: bool) -> Characters:
        """Read what follows a backslash. The ranges may hold surrogates."""
        letter = self._pattern[self._position : self._position + 1]
        self._position += 1
        if letter in classes.SHORTHANDS:
            return Characters(classes.SHORTHANDS[letter])
        if letter in _CONTROLS:
            return _make_single(_CONTROLS[letter])
        if letter == "b" and in_class:
            return _make_single(0x08)
        if (characters := self._parse_code(start)) is not None:
            return characters
        if not letter:
            message = "incomplete escape sequence, reached end of pattern prematurely"
            raise self._make_error(message, start)
        if letter.isascii() and letter.isalnum():
            raise self._make_error(_REFUSED.get(letter, "unrecognized escape sequence"), start)
        return _make_single(ord(letter))

    def _parse_code(self, start: int) -> Characters | None:
        """Read an escape of several characters."""
        text, at = self._pattern, start + 1
        if match := _PAIR.match(text, at):
            self._position = match.end()
            high, low = int(match[1], 16), int(match[2], 16)
            return _make_single(0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00)
        if match := _CODE_POINT.match(text, at):
            self._position = match.end()
            value = int((match[1] or match[2] or match[3])[-12:], 16)
            if value > 0x10FFFF:
                raise self._make_error("hexadecimal literal is not a Unicode scalar value", start)
            return _make_single(value)
        if match := _CONTROL.match(text, at):
            self._position = match.end()
            return _make_single(ord(match[1]) % 32)
        if text.startswith("0", at) and not text[at + 1 : at + 2].isdecimal():
            self._position = at + 1
            return _make_single(0)
        if match := _PROPERTY.match(text, at):
            self._position = match.end()
            return self._parse_property(start, match[0], match[2], negated=match[1] == "P")
        return None

    def _parse_property(self, start: int, source: str, name: str, *, negated: bool) -> Characters:
        ranges = classes.load_category(name)
        if ranges is None:
            if not classes.is_property(name):
                raise self._make_error("Unicode property not found", start)
            if self._flags.i:
                message = f"\\{source} has no meaning where case is ignored; leave out (?i)"
                raise self._make_error(message, start)
            return Characters((), (f"\\{source}",))
        ranges = code_points.invert(ranges) if negated else ranges
        return Characters(ranges)


def _make_single(point: int) -> Characters:
    return Characters(((point, point),))


def _is_single(characters: Characters) -> bool:
    return len(characters.ranges) == 1 and characters.ranges[0][0] == characters.ranges[0][1]


def _parse_count(digits: str) -> int:
    return min(int(digits[:12]), MAX_COUNT)


def _make_word_edge(*, negated: bool) -> Node:
    """Return the assertion of ECMA-262, 22.2.2.4: a word character on one side only, or on both or
    neither."""
    options = []
    for before in (True, False):
        after = before if negated else not before
        options.append(
            make_sequence(
                (
                    Look(_WORD_CHARACTER, ahead=False, negated=not before),
                    Look(_WORD_CHARACTER, ahead=True, negated=not after),
                )
            )
        )
    return make_choice(options)
