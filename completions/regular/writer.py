"""Writes trees without conditions as text that Rust and ECMA-262 read alike."""

from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.syntax import Alternation, Characters, Concatenation, Node, Repeat

_PLAIN = " !\"'%,/:;<=>@_`"
_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\v": "\\v"}
_REPETITIONS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


class HasConditionError(Exception):
    """Whether a part matches depends on the text around it, so that Rust's syntax lacks it."""


class Writer:
    def write(self, node: Node) -> str:
        """Return a node, so that it can be concatenated with others. Raises HasConditionError."""
        match node:
            case Characters():
                return self.write_characters(node)
            case Concatenation(parts):
                return "".join(map(self.write, parts))
            case Alternation(options):
                return f"(?:{'|'.join(map(self.write, options))})"
            case Repeat(item, low, high):
                text = self.write(item)
                is_short = isinstance(item, Characters | Alternation)
                return f"{text if is_short else f'(?:{text})'}{write_repetition(low, high)}"
            case _:
                raise HasConditionError

    def write_characters(self, atom: Characters) -> str:
        """Return a set of characters as a class."""
        if not atom.properties:
            return write_class(atom.ranges)
        plain = write_ranges(atom.ranges) if atom.ranges else ""
        return f"[{'^' * atom.negated}{plain}{''.join(atom.properties)}]"


def write_class(ranges: Ranges) -> str:
    """Return a class of characters; one that reaches to the last character is written negated."""
    if ranges == code_points.ALL:
        return "[\\s\\S]"
    if not ranges:
        return "[^\\s\\S]"
    if ranges[-1][1] == code_points.ALL[-1][1]:
        return f"[^{write_ranges(code_points.invert(ranges))}]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _escape(ranges[0][0])
    return f"[{write_ranges(ranges)}]"


def write_ranges(ranges: Ranges) -> str:
    """Return the inside of a class. Two ranges that only the surrogates separate are written as
    one: the negation of both would hold U+D7FF and U+E000 (regex-syntax)."""
    if (0xD7FF in (high for _, high in ranges)) and (0xE000 in (low for low, _ in ranges)):
        middle = next(index for index, (_, high) in enumerate(ranges) if high == 0xD7FF)
        joined = ranges[middle][0], ranges[middle + 1][1]
        ranges = (*ranges[:middle], joined, *ranges[middle + 2 :])
    return "".join(
        _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in ranges
    )


def write_repetition(low: int, high: int | None) -> str:
    """Return the suffix that repeats what it follows, in a pattern or in Lark."""
    if low == high:
        return f"{{{low}}}"
    return _REPETITIONS.get((low, high)) or f"{{{low},{'' if high is None else high}}}"


def _escape(code_point: int) -> str:
    character = chr(code_point)
    if code_point < 0x20 or code_point == 0x7F:
        return _CONTROLS.get(character, f"\\x{code_point:02x}")
    if code_point > 0x7F:
        return character if character.isprintable() else f"\\u{{{code_point:x}}}"
    plain = character.isalnum() or character in _PLAIN
    return character if plain else "\\" + character
