"""The order of lines in which each shared prompt prefix is computed only once.

The KV cache shares whole blocks, so two prompts share their leading equal blocks. A prompt's path
has one hash per block, computed over all tokens up to the end of that block. Paths are the
branches of a trie. In depth-first order, the lines that need a prefix follow each other, so the
cache need not hold more than one branch.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

BLOCK = 16
"""Tokens of a block, until a worker reports another number."""
WIDTH = 8
"""Bytes of a hash."""


def hash_prefixes(prompt: Sequence[int], salt: str, block_size: int = BLOCK) -> bytes:
    """Hash the prompt's blocks that another prompt can share, in order.

    The last token never counts, because it must be computed. A different `salt` keeps equal blocks
    apart.
    """
    hashes, chain = [], salt.encode()
    tokens = array("I", prompt)
    for start in range(0, len(prompt) - block_size, block_size):
        block = tokens[start : start + block_size].tobytes()
        chain = hashlib.blake2b(chain + block, digest_size=WIDTH).digest()
        hashes.append(chain)
    return b"".join(hashes)


class _Group(NamedTuple):
    """Adjacent paths of a sorted list that share their first `depth` blocks."""

    first: int
    end: int
    depth: int


def plan_order(paths: Sequence[bytes]) -> list[int]:
    """Return the indexes of the paths in depth-first order. At each node the branch with the
    longest shared prefix comes first, then the one with the most lines, then the first in the
    file."""
    by_path = sorted(range(len(paths)), key=lambda index: (paths[index], index))
    ordered = [paths[index] for index in by_path]
    shared = [_count_shared_blocks(one, other) for one, other in pairwise(ordered)]
    order: list[int] = []
    waiting = [_Group(0, len(by_path), 0)]
    while waiting:
        group = waiting.pop()
        if group.end - group.first < 2 or group.depth * WIDTH >= len(ordered[group.end - 1]):
            order += by_path[group.first : group.end]  # one line, or equal lines
            continue
        branches = list(_split_group(shared, group))
        branches.sort(key=lambda each: by_path[each.first], reverse=True)
        branches.sort(key=lambda each: (each.depth, each.end - each.first))
        waiting += branches  # popped from the end: the last one first
    return order


def _split_group(shared: Sequence[int], group: _Group) -> Iterator[_Group]:
    """Yield the parts of a group that share a longer prefix than the whole group."""
    within = shared[group.first : group.end - 1]
    least = min(within)
    first = group.first
    for last in range(group.first, group.end):
        if last + 1 < group.end and shared[last] > least:
            continue
        inside = shared[first:last]
        yield _Group(first, last + 1, min(inside) if inside else least)
        first = last + 1


def _count_shared_blocks(one: bytes, other: bytes) -> int:
    """Count the leading blocks that two paths share."""
    end = min(len(one), len(other)) // WIDTH
    low, high = 0, end
    while low < high:  # a comparison of bytes is fast at any length
        middle = (low + high + 1) // 2
        if one[: middle * WIDTH] == other[: middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def has_shared_prefix(paths: Sequence[bytes]) -> bool:
    """Return whether any two paths share their first block."""
    seen: set[bytes] = set()
    for path in paths:
        first = path[:WIDTH]
        if first and first in seen:
            return True
        seen.add(first)
    return False
