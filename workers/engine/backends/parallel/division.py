"""Divides a model's attention heads among ranks."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Share:
    """The heads that one rank computes: ranges of query heads, and of the key heads they read."""

    heads: range
    kv_heads: range


def is_even(heads: int, kv_heads: int, ranks: int) -> bool:
    """Return whether all ranks get equally many query heads, and equally many key heads."""
    return heads % ranks == 0 and kv_heads % ranks == 0


def divide(heads: int, kv_heads: int, ranks: int) -> list[Share]:
    """Return the shares of the ranks, in order. Key heads are divided as evenly as possible, each
    with the query heads that read it. If there are fewer key heads than ranks, several ranks have
    the same key head, and divide its query heads.

    Raises ValueError if a rank would get no query head.
    """
    group = heads // kv_heads
    if ranks <= kv_heads:
        bounds = [rank * kv_heads // ranks for rank in range(ranks + 1)]
        return [
            Share(range(begin * group, end * group), range(begin, end))
            for begin, end in pairwise(bounds)
        ]
    owner = [rank * kv_heads // ranks for rank in range(ranks)]
    most = max(owner.count(head) for head in range(kv_heads))
    if most > group:
        raise ValueError(
            f"{ranks} ranks cannot share {heads} attention heads, {group} for each of {kv_heads} "
            f"KV heads: set tensor_parallel_size to {heads} at most"
        )
    shares = []
    for rank, head in enumerate(owner):
        place, of = rank - owner.index(head), owner.count(head)
        begin, end = (head * group + i * group // of for i in (place, place + 1))
        shares.append(Share(range(begin, end), range(head, head + 1)))
    return shares
