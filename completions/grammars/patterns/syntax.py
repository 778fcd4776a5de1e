"""The parts of a regular expression, without what its groups capture."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from completions.grammars import code_points
from completions.grammars.code_points import Ranges


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set."""

    ranges: Ranges
    properties: tuple[str, ...] = ()
    """Unicode properties whose characters belong to the set too, such as `\\p{Greek}`: those that
    only llguidance knows."""
    negated: bool = False
    """Whether all other characters are meant. Only with properties."""


@dataclass(frozen=True, slots=True)
class Sequence:
    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
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


Node = Characters | Sequence | Choice | Repeat | Edge | Look
EMPTY = Sequence(())
ANYTHING = Characters(code_points.ALL)
NOTHING = Characters(())


def make_sequence(items: Iterable[Node]) -> Node:
    """Return the items one after another; sequences among them are opened."""
    opened: list[Node] = []
    for item in items:
        opened += item.items if isinstance(item, Sequence) else (item,)
    return opened[0] if len(opened) == 1 else Sequence(tuple(opened))


def make_choice(options: Iterable[Node]) -> Node:
    """Return one of the options; choices among them are opened."""
    opened: list[Node] = []
    for option in options:
        opened += option.options if isinstance(option, Choice) else (option,)
    return opened[0] if len(opened) == 1 else Choice(tuple(opened))


def get_children(node: Node) -> "tuple[Node, ...]":
    match node:
        case Sequence(items):
            return items
        case Choice(options):
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
