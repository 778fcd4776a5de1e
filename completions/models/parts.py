"""Splits long iterables into parts that fit one transaction or round trip."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def parts(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield lists of `size` items; the last may be shorter. Holds one list at a time."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
