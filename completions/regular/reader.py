"""Reads a pattern into a tree, without recursion. A dialect is a subclass."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.syntax import Characters

N = TypeVar("N")
_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNTS = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_CONTROL = re.compile(r"c([A-Za-z])")


class Factory(Protocol[N]):
    """Maker of the nodes of a tree."""

    def make_concatenation(self, parts: Iterable[N]) -> N: ...
    def make_alternation(self, options: Iterable[N]) -> N: ...
    def make_repeat(self, item: N, /, low: int, high: int | None) -> N: ...


class Flags(NamedTuple):
    i: bool = False
    """Whether letters match regardless of case."""
    m: bool = False
    """Whether ^ and $ match at the edges of lines."""
    s: bool = False
    """Whether the dot matches the ends of lines."""


class Advice(NamedTuple):
    """What a dialect says about what every dialect refuses. A name in braces stands for a part of
    the pattern."""

    unopened_group: str
    unclosed_group: str
    unclosed_class: str
    nothing_to_repeat: str
    """May name the `character`."""
    counts: str
    reversed_counts: str
    """May name the `counts`."""
    reversed_range: str
    set_in_range: str
    lone_backslash: str
    code_point: str
    """May name the `escape`."""
    escape: str
    """About an unknown escape; may name its `letter`."""


@dataclass(slots=True)
class Group(Generic[N]):
    """An open parenthesis: what was read inside it so far."""

    start: int
    flags: Flags
    """Those that hold again after it."""
    close: Callable[[N], N] = lambda node: node
    options: list[list[N]] = field(default_factory=list)
    items: list[N] = field(default_factory=list)
    is_repeatable: bool = False
    """Whether a quantifier may follow the last item."""

    def add(self, item: N, *, is_repeatable: bool = True) -> None:
        self.items.append(item)
        self.is_repeatable = is_repeatable

    def end_option(self) -> None:
        self.options.append(self.items)
        self.items, self.is_repeatable = [], False


class Reader(ABC, Generic[N]):
    """Reader of one pattern. Its methods `read_...` read what stands at the position, and raise
    what `make_error` makes."""

    advice: ClassVar[Advice]
    shorthands: ClassVar[Mapping[str, Characters]]
    """The letters after a backslash that are a set."""
    controls: ClassVar[Mapping[str, int]]
    """The letters after a backslash that are one character."""
    refused: ClassVar[Mapping[str, str]]
    """What to say about some letters after a backslash that cannot be read otherwise."""
    code_point: ClassVar[re.Pattern[str]]
    property_name: ClassVar[re.Pattern[str]]
    repeats_repetitions: ClassVar[bool] = False
    takes_dash_after_set: ClassVar[bool] = True
    r"""Whether the dash of `[\d-z]` is a character."""

    def __init__(self, pattern: str, make: Factory[N]) -> None:
        self.pattern = pattern
        self.position = 0
        self.flags = Flags()
        self.make = make

    @abstractmethod
    def make_error(self, message: str, position: int) -> Exception: ...

    @abstractmethod
    def open_group(self, groups: list[Group[N]]) -> Group[N] | None:
        """Read what begins with a parenthesis. Returns None if that is no group."""

    @abstractmethod
    def read_atom(self, groups: list[Group[N]]) -> None:
        """Read an anchor, or one character of a set, into the last group."""

    @abstractmethod
    def read_count(self, digits: str) -> int:
        """Return a count of a quantifier."""

    def read_brace(self, start: int) -> None:
        """Read a brace that begins no quantifier: refuse it, or leave it to `read_atom`."""
        raise self.make_error(self.advice.counts, start)

    def read_property(self, start: int, name: str, *, negated: bool) -> Characters:
        raise NotImplementedError

    def can_repeat(self, closed: N) -> bool:
        """Return whether a quantifier may follow a group."""
        return True

    def fold(self, ranges: Ranges) -> Ranges:
        """Return the characters, with those of the other case where case is ignored."""
        return ranges

    def read(self) -> N:
        groups: list[Group[N]] = [Group(0, self.flags)]
        while self.position < len(self.pattern):
            start, character = self.position, self.pattern[self.position]
            group = groups[-1]
            if character == "(":
                opened = self.open_group(groups)
                groups += () if opened is None else (opened,)
            elif character == ")":
                if len(groups) == 1:
                    raise self.make_error(self.advice.unopened_group, start)
                self.position += 1
                self.flags = group.flags
                closed = self._close(groups.pop())
                groups[-1].add(closed, is_repeatable=self.can_repeat(closed))
            elif self.take("|"):
                group.end_option()
            elif (bounds := self._read_bounds()) is not None:
                self.repeat(group, start, *bounds)
            else:
                self.read_atom(groups)
        if len(groups) > 1:
            raise self.make_error(self.advice.unclosed_group, groups[-1].start)
        return self._close(groups[0])

    def _close(self, group: Group[N]) -> N:
        group.end_option()
        return group.close(
            self.make.make_alternation(map(self.make.make_concatenation, group.options))
        )

    def take(self, text: str) -> bool:
        """Read a text, if it is next."""
        if not self.pattern.startswith(text, self.position):
            return False
        self.position += len(text)
        return True

    def match(self, expression: re.Pattern[str], start: int) -> re.Match[str] | None:
        """Read what an expression matches at a position, if it does."""
        match = expression.match(self.pattern, start)
        if match is not None:
            self.position = match.end()
        return match

    def _read_bounds(self) -> tuple[int, int | None] | None:
        """Read a quantifier, if there is one."""
        start, character = self.position, self.pattern[self.position]
        if character in _BOUNDS:
            self.position += 1
            return _BOUNDS[character]
        if character != "{":
            return None
        counts = self.match(_COUNTS, start)
        if counts is None:
            self.read_brace(start)
            return None
        low = self.read_count(counts[1])
        high = self.read_count(counts[3]) if counts[3] else None if counts[2] else low
        if high is not None and high < low:
            raise self.make_error(self.advice.reversed_counts.replace("{counts}", counts[0]), start)
        return low, high

    def repeat(self, group: Group[N], start: int, low: int, high: int | None) -> None:
        """Repeat the last item. A ? makes that lazy, which changes no match as a whole."""
        if not group.is_repeatable:
            message = self.advice.nothing_to_repeat.replace("{character}", self.pattern[start])
            raise self.make_error(message, start)
        self.take("?")
        group.items[-1] = self.make.make_repeat(group.items[-1], low, high)
        group.is_repeatable = self.repeats_repetitions

    def read_class(self) -> Characters:
        """Read a class, from its bracket on."""
        start = self.position
        self.position += 1
        negated = self.take("^")
        items: list[Characters] = []
        while not self.ends_class(items):
            if self.position >= len(self.pattern):
                raise self.make_error(self.advice.unclosed_class, start)
            items.append(self.read_class_item())
        ranges = self.fold(code_points.merge(each for item in items for each in item.ranges))
        if properties := self.get_properties(items):
            return Characters(ranges, properties, negated)
        return Characters(code_points.invert(ranges) if negated else ranges)

    def get_properties(self, items: list[Characters]) -> tuple[str, ...]:
        return tuple(each for item in items for each in item.properties)

    def ends_class(self, items: list[Characters]) -> bool:
        """Read the bracket that ends a class of some items, if it is next."""
        return self.take("]")

    def read_class_item(self) -> Characters:
        """Read one character, a set, or a range."""
        start = self.position
        low = self._read_character()
        dash = self.pattern[self.position : self.position + 2]
        if not dash.startswith("-") or dash in ("-", "-]"):
            return low
        if self.takes_dash_after_set and not _is_single(low):
            return low
        self.position += 1
        high = self._read_character()
        if not (_is_single(low) and _is_single(high)):
            raise self.make_error(self.advice.set_in_range, start)
        first, last = low.ranges[0][0], high.ranges[0][0]
        if last < first:
            raise self.make_error(self.advice.reversed_range, start)
        return Characters(((first, last),))

    def _read_character(self) -> Characters:
        character = self.pattern[self.position]
        if character == "\\":
            return self.read_escape(in_class=True)
        self.position += 1
        return make_single(ord(character))

    def read_escape(self, *, in_class: bool = False) -> Characters:
        """Read an escape, from its backslash on. The ranges may hold surrogates."""
        start = self.position
        letter = self.pattern[start + 1 : start + 2]
        self.position += 2
        if not letter:
            raise self.make_error(self.advice.lone_backslash, start)
        if letter in self.shorthands:
            return self.shorthands[letter]
        if letter in self.controls:
            return make_single(self.controls[letter])
        if (characters := self.read_code(start, in_class)) is not None:
            return characters
        if self.is_refused(letter):
            message = self.refused.get(letter, self.advice.escape)
            raise self.make_error(message.replace("{letter}", letter), start)
        return make_single(ord(letter))

    def is_refused(self, letter: str) -> bool:
        """Return whether a letter without a meaning of its own is refused after a backslash."""
        return letter.isascii() and letter.isalnum()

    def read_code(self, start: int, in_class: bool) -> Characters | None:
        """Read an escape whose meaning depends on more than its letter, if there is one."""
        if in_class and self.pattern.startswith("b", start + 1):
            return make_single(0x08)
        if match := self.match(_CONTROL, start + 1):
            return make_single(ord(match[1]) % 32)
        if match := self.match(self.property_name, start + 1):
            name = next(filter(None, match.groups()[1:]))
            return self.read_property(start, name, negated=match[1] == "P")
        return self.read_code_point(start)

    def read_code_point(self, start: int) -> Characters | None:
        """Read the escape of a code point, if there is one."""
        match = self.match(self.code_point, start + 1)
        if match is None:
            return None
        point = int(next(filter(None, match.groups())), 16)
        if not self.is_code_point(point):
            raise self.make_error(self.advice.code_point.replace("{escape}", match[0]), start)
        return make_single(point)

    def is_code_point(self, point: int) -> bool:
        return code_points.is_character(point)


def make_single(point: int) -> Characters:
    return Characters(((point, point),))


def _is_single(characters: Characters) -> bool:
    return len(characters.ranges) == 1 and characters.ranges[0][0] == characters.ranges[0][1]
