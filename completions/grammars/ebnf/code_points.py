"""Sets of Unicode characters, as sorted ranges of code points that neither touch nor overlap."""

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""First and last code point of each range, both included."""

ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""Every character. Surrogates are not characters: no UTF-8 text holds one."""


def is_character(code_point: int) -> bool:
    return 0 <= code_point <= 0xD7FF or 0xE000 <= code_point <= 0x10FFFF


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union of some ranges, without surrogates."""
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


def complement(ranges: Ranges) -> Ranges:
    gaps, start = [], 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= ALL[-1][1]:
        gaps.append((start, ALL[-1][1]))
    return union(gaps)


def intersect(one: Ranges, other: Ranges) -> bool:
    """Whether a character is in both, in linear time."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] < other[j][0]:
            i += 1
        elif other[j][1] < one[i][0]:
            j += 1
        else:
            return True
    return False


def lead_bytes(ranges: Ranges) -> int:
    """The first bytes of the characters in UTF-8, as a set of 256 bits."""
    found = 0
    for low, high in ranges:
        first, last = _lead_byte(low), _lead_byte(high)
        found |= (1 << (last + 1)) - (1 << first)
    return found


def _lead_byte(code_point: int) -> int:
    return chr(code_point).encode()[0]
