"""Splits long iterables into parts that fit one transaction or round trip."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def parts(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield lists of `size` items; the last may be shorter. Holds one list at a time."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


def portions(
    items: Iterable[_T], most: int, most_bytes: int, size_of: Callable[[_T], int]
) -> Iterator[list[_T]]:
    """Yield lists within both limits; an item larger than `most_bytes` is alone. Holds one list and
    one item at a time."""
    portion: list[_T] = []
    size = 0
    for item in items:
        more = size_of(item)
        if portion and (len(portion) == most or size + more > most_bytes):
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += more
    if portion:
        yield portion
