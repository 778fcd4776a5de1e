r"""Reads stop regexes: the part of the syntax that an automaton can follow.

These are literals, ``.``, classes, groups, ``|``, ``* + ? {m,n}``, ``^`` and ``\A``, and the flags
``i``, ``m`` and ``s``. Greedy and lazy repetitions are the same, because a search stops where the
first match ends. Classes cover Unicode, as in Python's ``re``. Look-around, back-references and
``\b`` need text that is not generated yet or not kept, and are refused.

``^`` matches at the beginning of the text. ``$``, ``\z`` and ``\Z`` match at the end of the
text so far, as in SGLang, which searches while the text grows. Every character is briefly the last
one, so a trailing ``$`` changes nothing. Nothing can match after a ``$``, so it is refused
anywhere else.
"""

import re
from collections.abc import Callable

from completions.regular import classes, code_points, syntax
from completions.regular.code_points import Ranges
from completions.regular.reader import Advice, Group, Reader, make_single
from completions.regular.syntax import (
    Alternation,
    Characters,
    Concatenation,
    Edge,
    Look,
    Node,
    Repeat,
)

Predicate = Callable[[str], bool]
"""Whether one character belongs to a set."""
_SHORTHANDS: dict[str, Predicate] = {
    "\\d": str.isdecimal,
    "\\w": lambda char: char.isalnum() or char == "_",
    "\\s": str.isspace,
    "\\D": lambda char: not char.isdecimal(),
    "\\W": lambda char: not char.isalnum() and char != "_",
    "\\S": lambda char: not char.isspace(),
}
_IGNORING_CASE = "(?i)"
"""The name of the characters that differ in case only from others of a set."""
_NEWLINE: Ranges = ((0x0A, 0x0A),)
LINE_START = Look(Characters(_NEWLINE), ahead=False)
_SET_OPERATIONS = ("&&", "--", "~~", "[:")
_GROUP_NAME = re.compile(r"P?<([^\W\d]\w*)>")
_FLAGS = re.compile(r"\?([ims]*)(?:-([ims]*))?([:)])")
_MAX_DEPTH = 100
_MAX_REPEAT = 1000
_NOT_CLOSED = "a group is not closed; write a ), or \\( for the character"
_CODE_POINT = "a bad character code; write it as in \\x41 or \\u0041"


class RegexError(ValueError):
    """The pattern is malformed, or uses unsupported syntax."""


def parse(pattern: str) -> Node:
    """Return the tree of a pattern. Raises RegexError."""
    node = _Reader(pattern, syntax).read()
    _check_ends(node, is_last=True)
    return node


def _check_ends(node: Node, *, is_last: bool) -> None:
    """Raise RegexError for an end before other parts. With `is_last`, nothing follows `node`."""
    match node:
        case Edge.END if not is_last:
            raise RegexError(
                "$ is the end of the text so far, after which nothing can match; put it at the end "
                r"of the pattern or of an alternative, or write \$ for the character"
            )
        case Concatenation(parts):
            for index, part in enumerate(parts, 1):
                _check_ends(part, is_last=is_last and index == len(parts))
        case Alternation(options):
            for option in options:
                _check_ends(option, is_last=is_last)
        case Repeat(item):
            _check_ends(item, is_last=False)


def make_predicate(atom: Characters) -> Predicate:
    """Return what tells the characters of a set: those of Python's ``re``."""
    ranges, negated = atom.ranges, atom.negated
    named = [_SHORTHANDS[each] for each in atom.properties if each != _IGNORING_CASE]

    def is_member(char: str) -> bool:
        return code_points.contains(ranges, ord(char)) or any(each(char) for each in named)

    if _IGNORING_CASE not in atom.properties:
        return lambda char: is_member(char) != negated
    return lambda char: (
        negated
        != any(len(each) == 1 and is_member(each) for each in (char, char.lower(), char.upper()))
    )


class _Reader(Reader[Node]):
    advice = Advice(
        unopened_group="this ) has no matching (; write \\) for the character",
        unclosed_group=_NOT_CLOSED,
        unclosed_class="a class is not closed; write a ], or \\[ for the character",
        nothing_to_repeat="nothing to repeat; write a backslash before it for the character",
        counts="",
        reversed_counts="a repetition whose minimum exceeds its maximum; exchange them",
        reversed_range="a bad range in a class; write the smaller character first, as in a-z",
        set_in_range="a bad range in a class; write it between two characters, as in a-z",
        lone_backslash="a backslash with nothing after it; write two for the character",
        code_point=_CODE_POINT,
        escape="unknown escape \\{letter}; write {letter} without the backslash",
    )
    shorthands = {name[1]: Characters((), (name,)) for name in _SHORTHANDS}
    controls = classes.CONTROLS | {"a": 0x07, "0": 0x00}
    refused = {
        **dict.fromkeys("bB", "word boundaries are not supported; write out what may stand there"),
        **dict.fromkeys(
            "pPX", "Unicode properties are not supported; list the characters in [...]"
        ),
        **dict.fromkeys("123456789kg", "back-references are not supported; write out the texts"),
        **dict.fromkeys("xuU", _CODE_POINT),
    }
    code_point = re.compile(
        r"[xuU]\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})"
    )

    def make_error(self, message: str, position: int) -> RegexError:
        return RegexError(f"{message} (at character {position + 1} of {self.pattern!r})")

    def open_group(self, groups: list[Group[Node]]) -> Group[Node] | None:
        """Read the beginning of a group; None if flags hold for the rest of the open group."""
        start, outer = self.position, self.flags
        self.position += 1
        if len(groups) > _MAX_DEPTH:
            raise self.make_error(f"more than {_MAX_DEPTH} nested groups; remove some", start)
        if match := self.match(_FLAGS, self.position):
            on, off, end = match[1], match[2] or "", match[3]
            self.flags = self.flags._replace(**dict.fromkeys(on, True))
            self.flags = self.flags._replace(**dict.fromkeys(off, False))
            if end == ")":
                groups[-1].is_repeatable = False
                return None
        elif self.take("?"):
            self._read_name(start)
        return Group(start, outer)

    def _read_name(self, start: int) -> None:
        if self.match(_GROUP_NAME, self.position):
            return
        rest = self.pattern[self.position :]
        if rest.startswith(("P<", "<")) and not rest.startswith(("<=", "<!")):
            message = "a bad group name; write (?P<name>...) with letters, digits and _"
        elif re.fullmatch("[ims-]*", rest):
            message = _NOT_CLOSED
        else:
            message = "look-around and this kind of group are not supported; write (?:...)"
        raise self.make_error(message, start)

    def read_count(self, digits: str) -> int:
        if len(digits) > 5 or int(digits) > _MAX_REPEAT:
            message = f"a repetition of more than {_MAX_REPEAT}; lower it"
            raise self.make_error(message, self.position)
        return int(digits)

    def read_brace(self, start: int) -> None:
        """Leave the brace, which is a character."""

    def repeat(self, group: Group[Node], start: int, low: int, high: int | None) -> None:
        if group.items and isinstance(group.items[-1], Repeat) and not group.is_repeatable:
            message = "a repetition of a repetition; put the first one in a group (?:...)"
            raise self.make_error(message, start)
        super().repeat(group, start, low, high)

    def read_atom(self, groups: list[Group[Node]]) -> None:
        group, start = groups[-1], self.position
        if self.take("\\A"):
            group.add(Edge.BEGINNING, is_repeatable=False)
        elif self.take("$") or self.take("\\z") or self.take("\\Z"):
            group.add(Edge.END, is_repeatable=False)
        elif self.take("^"):
            edges = (Edge.BEGINNING, LINE_START) if self.flags.m else (Edge.BEGINNING,)
            group.add(syntax.make_alternation(edges), is_repeatable=False)
        elif self.take("."):
            every = code_points.ALL if self.flags.s else code_points.invert(_NEWLINE)
            group.add(Characters(every))
        elif self.pattern[start] == "[":
            group.add(self.read_class())
        elif self.pattern[start] == "\\":
            escaped = self.read_escape()
            group.add(escaped if escaped.properties else self._make_literal(escaped))
        else:
            self.position += 1
            group.add(self._make_literal(make_single(ord(self.pattern[start]))))

    def _make_literal(self, character: Characters) -> Characters:
        return Characters(character.ranges, self.get_properties([]))

    def get_properties(self, items: list[Characters]) -> tuple[str, ...]:
        return (*super().get_properties(items), *([_IGNORING_CASE] if self.flags.i else ()))

    def ends_class(self, items: list[Characters]) -> bool:
        """A bracket at the beginning is a character."""
        return bool(items) and super().ends_class(items)

    def read_class_item(self) -> Characters:
        if self.pattern.startswith(_SET_OPERATIONS, self.position):
            message = "set operations and named classes are not supported; escape them"
            raise self.make_error(message, self.position)
        return super().read_class_item()

    def read_code(self, start: int, in_class: bool) -> Characters | None:
        return self.read_code_point(start)
