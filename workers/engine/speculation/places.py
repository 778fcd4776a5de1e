"""Chooses the place that a guess is copied from: the one that most matches agree with."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from workers.engine.core.draft import Guess, Support
from workers.engine.speculation.ngrams import LONGEST_MATCH, Match
from workers.engine.speculation.siblings import BORDER


class Place(NamedTuple):
    """A token that stands after the same tokens as the next one of a draft."""

    token_ids: list[int]
    position: int
    guess: Guess
    num_before: int
    """The number of tokens of the sequence and its draft before it."""

    @property
    def token_id(self) -> int:
        return self.token_ids[self.position]

    def after(self, known: Sequence[int]) -> Self | None:
        """Return the place after the tokens drafted since, or None if other tokens follow it.
        ``known`` holds the sequence's tokens and the drafted ones."""
        num_tokens = len(known) - self.num_before
        position = self.position + num_tokens
        is_end = position >= len(self.token_ids) or self.token_ids[position] == BORDER
        if is_end or self.token_ids[self.position : position] != known[self.num_before :]:
            return None
        matched = min(self.guess.matched + num_tokens, LONGEST_MATCH)
        guess = Guess(self.guess.source, matched, self.guess.support)
        return self._replace(position=position, guess=guess, num_before=len(known))


class Candidate(NamedTuple):
    """A token that followed some of the matches."""

    token_id: int
    weight: int
    match: Match
    """The longest match, and of equal ones the last."""


def candidates(token_ids: Sequence[int], matches: Sequence[Match]) -> list[Candidate]:
    """Return the tokens that followed ``matches`` in ``token_ids``, in descending order of weight.

    The weight of a match doubles with every two tokens: a long match counts more than several
    short ones, and several matches count more than a single, slightly longer one.
    """
    by_token: dict[int, Candidate] = {}
    for match in matches:
        token_id = token_ids[match.position] if match.position < len(token_ids) else BORDER
        if token_id == BORDER:
            continue
        weight = 1 << match.length // 2
        known = by_token.get(token_id)
        if known is not None:
            weight += known.weight
            match = max(known.match, match, key=lambda m: m.length)
        by_token[token_id] = Candidate(token_id, weight, match)
    return sorted(by_token.values(), key=lambda candidate: -candidate.weight)


def support(chosen: Candidate, others: Sequence[Candidate], num_matches: int) -> Support:
    """Return how strongly the matches agree on ``chosen``."""
    if not others:
        return Support.ALONE if num_matches == 1 else Support.ALL
    rest = sum(candidate.weight for candidate in others)
    return Support.MOST if chosen.weight >= 2 * rest else Support.SOME
