"""Long iterables in parts that fit into one transaction or round trip."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def parts(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Lists of `size` items, the last one shorter; no more is held at once."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
