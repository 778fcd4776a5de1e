"""The tree of a regular expression, without what its groups capture."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from completions.regular import code_points
from completions.regular.code_points import Ranges


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set."""

    ranges: Ranges
    properties: tuple[str, ...] = ()
    """Names of sets whose characters belong to it too: those that only what matches the text knows,
    as llguidance does `\\p{Greek}`."""
    negated: bool = False
    """Whether all other characters are meant. Only with properties."""


@dataclass(frozen=True, slots=True)
class Concatenation:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Alternation:
    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    item: "Node"
    low: int
    high: int | None


class Edge(Enum):
    """The beginning or the end of the text."""

    BEGINNING = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Look:
    """Whether `item` matches from here on, or up to here."""

    item: "Node"
    ahead: bool = True
    negated: bool = False


Node = Characters | Concatenation | Alternation | Repeat | Edge | Look
EMPTY = Concatenation(())
ANYTHING = Characters(code_points.ALL)
NOTHING = Characters(())


def make_concatenation(parts: Iterable[Node]) -> Node:
    """Return the parts one after another; concatenations among them are opened."""
    opened: list[Node] = []
    for part in parts:
        opened += part.parts if isinstance(part, Concatenation) else (part,)
    return opened[0] if len(opened) == 1 else Concatenation(tuple(opened))


def make_alternation(options: Iterable[Node]) -> Node:
    """Return one of the options; alternations among them are opened."""
    opened: list[Node] = []
    for option in options:
        opened += option.options if isinstance(option, Alternation) else (option,)
    return opened[0] if len(opened) == 1 else Alternation(tuple(opened))


def make_repeat(item: Node, low: int, high: int | None) -> Node:
    return Repeat(item, low, high)


def get_children(node: Node) -> "tuple[Node, ...]":
    match node:
        case Concatenation(parts):
            return parts
        case Alternation(options):
            return options
        case Repeat(item) | Look(item):
            return (item,)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything inside it."""
    waiting = [node]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += get_children(item)
