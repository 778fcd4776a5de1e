"""Sets of Unicode characters, as sorted ranges of code points that neither touch nor overlap."""

import itertools
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

Ranges = tuple[tuple[int, int], ...]
"""First and last code point of each range, both included."""

ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""Every character. Surrogates are not characters: no UTF-8 text holds one."""


def is_character(code_point: int) -> bool:
    return 0 <= code_point <= 0xD7FF or 0xE000 <= code_point <= 0x10FFFF


def contains(ranges: Ranges, code_point: int) -> bool:
    index = bisect_right(ranges, (code_point, ALL[-1][1]))
    return index > 0 and code_point <= ranges[index - 1][1]


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of some ranges, without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(
        (max(low, first), min(high, last))
        for low, high in merged
        for first, last in ALL
        if low <= last and first <= high
    )


def invert(ranges: Ranges) -> Ranges:
    gaps, start = [], 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= ALL[-1][1]:
        gaps.append((start, ALL[-1][1]))
    return merge(gaps)


def subtract(ranges: Ranges, excluded: Ranges) -> Ranges:
    """Return the characters of some ranges, without the excluded ones."""
    remaining = invert(excluded)
    return merge(
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in remaining
        if low <= last and first <= high
    )


def load_category(name: str) -> Ranges:
    """Return the characters of a Unicode general category such as Lu, or of a group of categories
    such as L.

    Empty if there is no such category.
    """
    return merge(
        span
        for each, spans in _load_categories().items()
        if each.startswith(name)
        for span in spans
    )


@lru_cache(maxsize=1)
def _load_categories() -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of every category, found in about 0.2 s."""
    categories: dict[str, list[tuple[int, int]]] = {}
    names = map(unicodedata.category, map(chr, range(0x110000)))
    first = 0
    for name, run in itertools.groupby(names):
        following = first + sum(1 for _ in run)
        categories.setdefault(name, []).append((first, following - 1))
        first = following
    return categories


def find_lead_bytes(ranges: Ranges) -> int:
    """Return the first bytes of the characters in UTF-8, as a set of 256 bits."""
    bits = 0
    for low, high in ranges:
        first, last = (chr(code_point).encode()[0] for code_point in (low, high))
        bits |= (1 << (last + 1)) - (1 << first)
    return bits
