"""Whose prompt is computed next, and who yields a slot. No torch, no clock."""

from workers.engine.scheduling.waiting_queue import MAX_PASSED_OVER
from workers.engine.sequence import Sequence

LEAST_PROGRESS = 64
"""Output tokens after which a sequence may have to yield its slot to another organization."""


def take_turns(unfinished: list[Sequence]) -> list[Sequence]:
    """Sort sequences with several tokens to compute: those that decode forced tokens come before
    prompts, then prompts that were overtaken too often. Among the others of a rank, each
    organization's first prompt comes before any second one, and shorter ones before longer ones."""
    counts: dict[tuple[float, str], int] = {}
    keys = {}
    for sequence in unfinished:
        is_prefill = sequence.num_computed < sequence.prompt_len
        owner = sequence.rank, sequence.organization
        place = counts[owner] = counts.get(owner, 0) + is_prefill
        length = sequence.num_uncomputed if is_prefill else 0
        keys[sequence] = is_prefill, not is_overdue(sequence), -sequence.rank, place, length
    return sorted(unfinished, key=keys.__getitem__)


def pop_newest(by_owner: dict[str, list[Sequence]]) -> Sequence | None:
    """Remove and return the newest sequence that may yield, of the organization with the most."""
    for sequences in sorted(by_owner.values(), key=len, reverse=True):
        for sequence in reversed(sequences):
            is_last = len(sequences) == 1
            if _has_progressed(sequence) or not (is_last or sequence.has_yielded):
                sequences.remove(sequence)
                return sequence
    return None


def _has_progressed(sequence: Sequence) -> bool:
    """Whether a sequence has gained enough since it started to be worth the tokens that its start
    cost. Cached ones cost nothing."""
    gained = len(sequence.token_ids) - sequence.num_at_start
    cost = sequence.num_at_start - sequence.num_cached_at_start
    return gained >= max(LEAST_PROGRESS, cost // 4)


def is_overdue(sequence: Sequence) -> bool:
    return sequence.passed_over >= MAX_PASSED_OVER
