"""Whose prompt is computed next, and who yields a slot. No torch, no clock."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Rows

from workers.engine.core.sequence import Sequence
from workers.engine.scheduling.waiting_queue import MAX_PASSED_OVER

LEAST_PROGRESS = 64
"""Output tokens after which a sequence may have to yield its slot to another organization."""


def take_turns(unfinished: list[Sequence]) -> list[Sequence]:
    """Sort sequences with several tokens to compute: those that decode forced tokens come before
    prompts, then prompts that were overtaken too often. Among the others of a rank, each
    organization's shortest prompt comes before any second one, and shorter ones before longer ones.
    """
    counts: dict[tuple[float, str], int] = {}
    keys = {}
    for sequence in sorted(unfinished, key=_rest):
        is_prefill = sequence.num_computed < sequence.prompt_len
        owner = sequence.rank, sequence.origin.organization
        place = counts[owner] = counts.get(owner, 0) + is_prefill
        length = sequence.num_uncomputed if is_prefill else 0
        keys[sequence] = is_prefill, not is_overdue(sequence), -sequence.rank, place, length
    return sorted(unfinished, key=keys.__getitem__)


def find_victims(
    running: Iterable[Sequence], rank: float, missing: int, references: Rows[int]
) -> list[Sequence] | None:
    """Return the newest sequences of the organizations with the most slots, as many as must make
    way for a sequence that needs a slot and ``missing`` blocks; None if they do not suffice.

    An organization keeps its last slot until the sequence in it has progressed, and a sequence that
    has yielded before does not again until then. So time goes into progress, not into computing
    tokens again and again. ``running`` is in the order of arrival; ``references`` are the holders
    of each block.
    """
    by_owner: dict[str, list[Sequence]] = {}
    for sequence in running:
        if sequence.rank == rank:
            by_owner.setdefault(sequence.origin.organization, []).append(sequence)
    holders = Counter[int]()
    victims: list[Sequence] = []
    while not victims or missing > 0:
        if (victim := _pop_newest(by_owner)) is None:
            return None
        victims.append(victim)
        holders.update(victim.block_ids)
        freed = sum(holders[b] == references[b] for b in victim.block_ids)
        missing -= freed + 1
    return victims


def _pop_newest(by_owner: dict[str, list[Sequence]]) -> Sequence | None:
    """Remove and return the newest sequence that may yield, of the organization with the most."""
    for sequences in sorted(by_owner.values(), key=len, reverse=True):
        for sequence in reversed(sequences):
            is_last = len(sequences) == 1
            if _has_progressed(sequence) or not (is_last or sequence.turn.has_yielded):
                sequences.remove(sequence)
                return sequence
    return None


def _has_progressed(sequence: Sequence) -> bool:
    """Return whether a sequence has gained enough since it started to be worth the tokens that its
    start cost. Cached ones cost nothing."""
    gained = len(sequence.token_ids) - sequence.turn.num_at_start
    cost = sequence.turn.num_at_start - sequence.turn.num_cached_at_start
    return gained >= max(LEAST_PROGRESS, cost // 4)


def is_overdue(sequence: Sequence) -> bool:
    """Return whether too many others started while the rest of its prompt waited."""
    return sequence.turn.passed_over >= MAX_PASSED_OVER


def is_before(rank: float, sequence: Sequence, other: Sequence) -> bool:
    """Return whether a waiting sequence, which would start with ``rank``, may start before a
    running one goes on: it ranks above it, or has the same rank and a shorter rest."""
    return (-rank, _rest(sequence)) < (-other.rank, _rest(other))


def _rest(sequence: Sequence) -> int:
    return sequence.num_uncomputed
