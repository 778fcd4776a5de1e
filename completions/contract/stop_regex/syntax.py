"""Parses regular expressions into trees: the part of the syntax that an automaton can follow.

These are literals, ``.``, classes, groups, ``|``, ``* + ? {m,n}``, ``^`` and ``\\A``, and the flags
``i``, ``m`` and ``s``. Greedy and lazy repetitions are the same, because a search stops where the
first match ends. Classes cover Unicode, as in Python's ``re``. Look-around, back-references and
``\\b`` need text that is not generated yet or not kept, and are refused.

``^`` matches at the beginning of the text. ``$``, ``\\z`` and ``\\Z`` match at the end of the
text so far, as in SGLang, which searches while the text grows. Every character is briefly the last
one, so a trailing ``$`` changes nothing. Nothing can match after a ``$``, so it is refused
anywhere else.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Predicate = Callable[[str], bool]
"""Whether one character belongs to a set."""

_CATEGORIES: dict[str, Predicate] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_REFUSED_ESCAPES = {
    **dict.fromkeys("bB", "word boundaries are not supported; write out what may stand there"),
    **dict.fromkeys("pPX", "Unicode properties are not supported; list the characters in [...]"),
    **dict.fromkeys("123456789kg", "back-references are not supported; write out the texts"),
}
_SET_OPERATIONS = ("&&", "--", "~~", "[:")
_MAX_DEPTH = 100
_MAX_REPEAT = 1000


class RegexError(ValueError):
    """The pattern is malformed, or uses unsupported syntax."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character from a set."""

    matches: Predicate


@dataclass(frozen=True, slots=True)
class Start:
    """The start of the text or, with ``of_line``, of any line."""

    of_line: bool


@dataclass(frozen=True, slots=True)
class End:
    """The end of the text so far."""


@dataclass(frozen=True, slots=True)
class Concatenation:
    parts: list["Node"]


@dataclass(frozen=True, slots=True)
class Alternation:
    options: list["Node"]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``maximum`` None is unbounded."""

    node: "Node"
    minimum: int
    maximum: int | None


Node = Chars | Start | End | Concatenation | Alternation | Repeat


class _Flags(NamedTuple):
    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False


_FLAG_FIELDS = {"i": "ignore_case", "m": "multiline", "s": "dot_all"}


def parse(pattern: str) -> Node:
    """Return the tree of a pattern. Raises RegexError."""
    parser = _Parser(pattern)
    node = parser.parse_alternation(0)
    if not parser.is_at_end:
        raise parser.make_error("this ) has no matching (; write \\) for the character")
    _check_ends(node, is_last=True)
    return node


def _check_ends(node: Node, is_last: bool) -> None:
    """Raise RegexError for an End before other items. With `is_last`, nothing follows `node`."""
    match node:
        case End() if not is_last:
            raise RegexError(
                "$ is the end of the text so far, after which nothing can match; put it at the end "
                r"of the pattern or of an alternative, or write \$ for the character"
            )
        case Concatenation(parts):
            for index, part in enumerate(parts, 1):
                _check_ends(part, is_last and index == len(parts))
        case Alternation(options):
            for option in options:
                _check_ends(option, is_last)
        case Repeat(repeated):
            _check_ends(repeated, is_last=False)


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._flags = _Flags()

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._pattern)

    def make_error(self, reason: str) -> RegexError:
        return RegexError(f"{reason} (at character {self._at} of {self._pattern!r})")

    def parse_alternation(self, depth: int) -> Node:
        """Read alternatives up to the end or a closing bracket. Flags set inside end there too."""
        if depth > _MAX_DEPTH:
            raise self.make_error(f"more than {_MAX_DEPTH} nested groups; remove some")
        flags = self._flags
        options = [self._parse_concatenation(depth)]
        while self._take("|"):
            options.append(self._parse_concatenation(depth))
        self._flags = flags
        return options[0] if len(options) == 1 else Alternation(options)

    def _parse_concatenation(self, depth: int) -> Node:
        parts: list[Node] = []
        while not self.is_at_end and self._peek() not in "|)":
            bare = self._peek() != "("
            node = self._parse_atom(depth)
            if node is not None:
                parts.append(self._parse_quantifier(node, bare))
        return parts[0] if len(parts) == 1 else Concatenation(parts)

    def _parse_quantifier(self, node: Node, bare: bool) -> Node:
        if (bounds := self._parse_bounds()) is None:
            return node
        if bare and isinstance(node, Start | End):
            raise self.make_error(
                "nothing to repeat; write a backslash before it for the character"
            )
        minimum, maximum = bounds
        if minimum > _MAX_REPEAT or (maximum or 0) > _MAX_REPEAT:
            raise self.make_error(f"a repetition of more than {_MAX_REPEAT}; lower it")
        if maximum is not None and minimum > maximum:
            raise self.make_error("a repetition whose minimum exceeds its maximum; exchange them")
        self._take("?")  # lazy
        if not self.is_at_end and (self._peek() in "*+?" or self._parse_bounds() is not None):
            raise self.make_error(
                "a repetition of a repetition; put the first one in a group (?:...)"
            )
        return Repeat(node, minimum, maximum)

    def _parse_bounds(self) -> tuple[int, int | None] | None:
        """Read a quantifier, if there is one. Braces around anything else are literal."""
        for char, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(char):
                return bounds
        if self.is_at_end or self._peek() != "{":
            return None
        inside, closed, _ = self._pattern[self._at + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not _is_number(low) or not (_is_number(high) or not high):
            return None
        self._at += len(inside) + 2
        return int(low), int(high) if high else None if comma else int(low)

    def _parse_atom(self, depth: int) -> Node | None:
        """Read one item; None for flags, which change how the rest is read."""
        char = self._next()
        if char == "(":
            return self._parse_group(depth)
        if char == "[":
            return self._parse_class()
        if char == "\\":
            return self._parse_escape()
        if char == "^":
            return Start(self._flags.multiline)
        if char == "$":
            return End()
        if char == ".":
            return Chars((lambda _: True) if self._flags.dot_all else "\n".__ne__)
        if char in "*+?":
            raise self.make_error(
                "nothing to repeat; write a backslash before it for the character"
            )
        return self._make_literal(char)

    def _parse_group(self, depth: int) -> Node | None:
        flags = self._flags
        if self._take("?"):
            if self._take("P<") or (not self._is_next("<=", "<!") and self._take("<")):
                name, closed, _ = self._pattern[self._at :].partition(">")
                if not closed or not name.isidentifier():
                    raise self.make_error(
                        "a bad group name; write (?P<name>...) with letters, digits and _"
                    )
                self._at += len(name) + 1
            elif not self._take(":") and not self._set_flags():
                return None  # the flags hold until the enclosing group ends
        node = self.parse_alternation(depth + 1)
        self._flags = flags
        if not self._take(")"):
            raise self.make_error("a group is not closed; write a ), or \\( for the character")
        return node

    def _set_flags(self) -> bool:
        """Read ``ims-ims`` and its terminator; True if the flags open a group."""
        value = True
        while not self.is_at_end:
            char = self._next()
            if char == "-":
                value = False
            elif char in _FLAG_FIELDS:
                self._flags = self._flags._replace(**{_FLAG_FIELDS[char]: value})
            elif char in ":)":
                return char == ":"
            else:
                raise self.make_error(
                    "look-around and this kind of group are not supported; write (?:...)"
                )
        raise self.make_error("a group is not closed; write a ), or \\( for the character")

    def _parse_class(self) -> Chars:
        negated = self._take("^")
        members: list[Predicate] = []
        while not members or not self._take("]"):
            if self.is_at_end:
                raise self.make_error("a class is not closed; write a ], or \\[ for the character")
            if self._is_next(*_SET_OPERATIONS):
                raise self.make_error(
                    "set operations and named classes are not supported; escape them"
                )
            members.append(self._parse_member())
        matches = self._fold_case(lambda char: any(member(char) for member in members))
        return Chars(_negate(matches) if negated else matches)

    def _parse_member(self) -> Predicate:
        low = self._parse_member_end()
        if not isinstance(low, str):
            return low
        if not self._is_next("-") or self._is_next("-]"):
            return _make_range(low, low)
        self._at += 1
        high = self._parse_member_end() if not self.is_at_end else low
        if not isinstance(high, str) or high < low:
            raise self.make_error(
                "a bad range in a class; write the smaller character first, as in a-z"
            )
        return _make_range(low, high)

    def _parse_member_end(self) -> str | Predicate:
        char = self._next()
        return self._parse_escaped() if char == "\\" else char

    def _parse_escape(self) -> Node:
        if self._take("A"):
            return Start(of_line=False)
        if self._take("z") or self._take("Z"):
            return End()
        escaped = self._parse_escaped()
        return self._make_literal(escaped) if isinstance(escaped, str) else Chars(escaped)

    def _parse_escaped(self) -> str | Predicate:
        """Return the character, or the set of characters, that follows a backslash."""
        if self.is_at_end:
            raise self.make_error("a backslash with nothing after it; write two for the character")
        char = self._next()
        if char.lower() in _CATEGORIES:
            category = _CATEGORIES[char.lower()]
            return category if char.islower() else _negate(category)
        if char in _HEX_DIGITS:
            return self._parse_code_point(_HEX_DIGITS[char])
        if char in _REFUSED_ESCAPES:
            raise self.make_error(_REFUSED_ESCAPES[char])
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and char.isalnum():
            raise self.make_error(f"unknown escape \\{char}; write {char} without the backslash")
        return char

    def _parse_code_point(self, length: int) -> str:
        code = re.compile(rf"\{{([0-9A-Fa-f]+)\}}|([0-9A-Fa-f]{{{length}}})").match(
            self._pattern, self._at
        )
        try:
            char = chr(int(code[1] or code[2], 16)) if code else ""
        except (ValueError, OverflowError):
            char = ""  # beyond Unicode
        if not code or not char:
            raise self.make_error("a bad character code; write it as in \\x41 or \\u0041")
        self._at = code.end()
        return char

    def _make_literal(self, char: str) -> Chars:
        return Chars(self._fold_case(_make_range(char, char)))

    def _fold_case(self, matches: Predicate) -> Predicate:
        if not self._flags.ignore_case:
            return matches
        return lambda char: matches(char) or matches(char.lower()) or matches(char.upper())

    def _peek(self) -> str:
        return self._pattern[self._at]

    def _is_next(self, *texts: str) -> bool:
        return self._pattern.startswith(texts, self._at)

    def _next(self) -> str:
        char = self._pattern[self._at]
        self._at += 1
        return char

    def _take(self, text: str) -> bool:
        if not self._is_next(text):
            return False
        self._at += len(text)
        return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _make_range(low: str, high: str) -> Predicate:
    return low.__eq__ if low == high else lambda char: low <= char <= high


def _negate(matches: Predicate) -> Predicate:
    return lambda char: not matches(char)
