"""Reads a pattern as ECMA-262, 22.2.1, with the flag u.

It also takes what other dialects add without changing the meaning of anything else: escaped
punctuation, a lone `}` or `]`, `(?P<name>...)`, and the flags i, m and s for a group, or for the
rest of one.
"""

import re
from functools import lru_cache

from llguidance import LLMatcher

from completions.grammars.compiler import DEFAULT_COMPILER
from completions.grammars.messages import PATTERN_ADVICE
from completions.regular import classes, code_points, syntax
from completions.regular.code_points import Ranges
from completions.regular.reader import Advice, Group, Reader, make_single
from completions.regular.syntax import Characters, Edge, Look, Node

MAX_COUNT = 10**6
_GROUP = re.compile(
    r"\((?:\?(?:(?P<look><?[=!])|(?P<plain>:)|P?<(?P<name>[\w$]+)>"
    r"|(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]*))?(?P<end>[:)])))?"
)
_PAIR = re.compile(r"u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_ZERO = re.compile(r"0(?!\d)")
_POSIX_CLASS = re.compile(r"\[\^?\[:\^?\w+:\]")
_GROUP_ADVICE = "write a group as (...), (?:...) or (?<name>...)"
_POSIX_ADVICE = "this ] has no matching [: [:alpha:] is not in ECMA-262; write [a-zA-Z]"
_FLAGS_ADVICE = "the flags of a group are i, m and s, as in (?i:...); leave out the others"
_WORD_CHARACTER = Characters(classes.WORD)


class PatternSyntaxError(Exception):
    """A pattern that cannot be read, and what to write instead."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


@lru_cache(maxsize=512)
def read(pattern: str) -> Node:
    """Return the pattern, to be searched in a text. Raises PatternSyntaxError."""
    return _Reader(pattern, syntax).read()


@lru_cache(maxsize=256)
def is_property(name: str) -> bool:
    """Return whether llguidance knows a Unicode property, such as Script=Greek or Alphabetic."""
    return not DEFAULT_COMPILER.find_error(LLMatcher.grammar_from_regex(rf"\p{{{name}}}"))


class _Reader(Reader[Node]):
    advice = Advice(
        unopened_group=PATTERN_ADVICE["unopened group"],
        unclosed_group=PATTERN_ADVICE["unclosed group"],
        unclosed_class=PATTERN_ADVICE["unclosed character class"],
        nothing_to_repeat=PATTERN_ADVICE["repetition operator missing expression"],
        counts=PATTERN_ADVICE["repetition quantifier expects a valid decimal"],
        reversed_counts=PATTERN_ADVICE[
            "invalid repetition count range, the start must be <= the end"
        ],
        reversed_range=PATTERN_ADVICE[
            "invalid character class range, the start must be <= the end"
        ],
        set_in_range=PATTERN_ADVICE["invalid range boundary, must be a literal"],
        lone_backslash=PATTERN_ADVICE[
            "incomplete escape sequence, reached end of pattern prematurely"
        ],
        code_point=PATTERN_ADVICE["hexadecimal literal is not a Unicode scalar value"],
        escape=PATTERN_ADVICE["unrecognized escape sequence"],
    )
    shorthands = classes.make_shorthands(classes.SPACE)
    controls = classes.CONTROLS
    refused = {
        "A": "\\A is not in ECMA-262; write ^",
        "Z": "\\Z is not in ECMA-262; write $",
        "z": "\\z is not in ECMA-262; write $",
        **dict.fromkeys("k123456789", PATTERN_ADVICE["backreferences are not supported"]),
        "0": "an octal escape is not in ECMA-262; write one as in \\x00",
        "c": "\\c takes a letter, as in \\cA",
        **dict.fromkeys("xu", PATTERN_ADVICE["invalid hexadecimal digit"]),
        **dict.fromkeys("pP", PATTERN_ADVICE["Unicode property not found"]),
    }
    code_point = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]+)\}")
    property_name = re.compile(r"([pP])\{([\w=]+)\}")
    takes_dash_after_set = False

    def make_error(self, message: str, position: int) -> PatternSyntaxError:
        return PatternSyntaxError(message, position)

    def open_group(self, groups: list[Group[Node]]) -> Group[Node] | None:
        """Read the beginning of a group; None if flags hold for the rest of the open group."""
        start, outer = self.position, self.flags
        match = self.match(_GROUP, start)
        if match is None or self.pattern.startswith("?", match.end()):
            raise self.make_error(_GROUP_ADVICE, start)
        if look := match["look"]:
            ahead, negated = "<" not in look, "!" in look
            return Group(start, outer, lambda node: Look(node, ahead, negated))
        if match["end"]:
            self._set_flags(start, match["on"], match["off"] or "")
            if match["end"] == ")":
                return None
        return Group(start, outer)

    def _set_flags(self, start: int, on: str, off: str) -> None:
        if not on + off or set(on + off) - set("ims"):
            raise self.make_error(_FLAGS_ADVICE, start)
        if len(set(on + off)) < len(on + off):
            raise self.make_error(PATTERN_ADVICE["duplicate flag"], start)
        self.flags = self.flags._replace(**dict.fromkeys(on, True), **dict.fromkeys(off, False))

    def can_repeat(self, closed: Node) -> bool:
        return not isinstance(closed, Look | Edge)

    def read_count(self, digits: str) -> int:
        return min(int(digits[:12]), MAX_COUNT)

    def read_atom(self, groups: list[Group[Node]]) -> None:
        item = self._parse_atom()
        groups[-1].add(item, is_repeatable=self.can_repeat(item))

    def _parse_atom(self) -> Node:
        """Read an assertion, or one character: a class, an escape, a dot, or itself."""
        start, character = self.position, self.pattern[self.position]
        if character == "[":
            return self.read_class()
        if self.take("\\b") or self.take("\\B"):
            return _make_word_edge(negated=self.pattern[start + 1] == "B")
        if character == "\\":
            atom = self.read_escape()
            return atom if atom.properties else Characters(self.fold(atom.ranges))
        self.position += 1
        if character == ".":
            return Characters(code_points.ALL if self.flags.s else classes.DOT)
        if character in "^$":
            return self._make_edge(beginning=character == "^")
        if character == "]" and _POSIX_CLASS.search(self.pattern):
            raise self.make_error(_POSIX_ADVICE, start)
        return Characters(self.fold(make_single(ord(character)).ranges))

    def _make_edge(self, *, beginning: bool) -> Node:
        edge = Edge.BEGINNING if beginning else Edge.END
        if not self.flags.m:
            return edge
        line = Look(Characters(classes.LINE_ENDS), ahead=not beginning)
        return syntax.make_alternation((edge, line))

    def fold(self, ranges: Ranges) -> Ranges:
        return classes.fold(ranges) if self.flags.i else code_points.merge(ranges)

    def read_code(self, start: int, in_class: bool) -> Characters | None:
        if match := self.match(_PAIR, start + 1):
            high, low = int(match[1], 16), int(match[2], 16)
            return make_single(0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00)
        if self.match(_ZERO, start + 1):
            return make_single(0)
        return super().read_code(start, in_class)

    def is_code_point(self, point: int) -> bool:
        return point <= code_points.ALL[-1][1]

    def read_property(self, start: int, name: str, *, negated: bool) -> Characters:
        ranges = classes.load_category(name)
        if ranges is not None:
            return Characters(code_points.invert(ranges) if negated else ranges)
        source = self.pattern[start : self.position]
        if not is_property(name):
            raise self.make_error(PATTERN_ADVICE["Unicode property not found"], start)
        if self.flags.i:
            message = f"{source} has no meaning where case is ignored; leave out (?i)"
            raise self.make_error(message, start)
        return Characters((), (source,))


def _make_word_edge(*, negated: bool) -> Node:
    """Return the assertion of ECMA-262, 22.2.2.4: a word character on one side only, or on both or
    neither."""
    options = []
    for before in (True, False):
        after = before if negated else not before
        options.append(
            syntax.make_concatenation(
                (
                    Look(_WORD_CHARACTER, ahead=False, negated=not before),
                    Look(_WORD_CHARACTER, ahead=True, negated=not after),
                )
            )
        )
    return syntax.make_alternation(options)
