"""Guesses what follows one sequence: from its own tokens, from its siblings', and from what its
grammar forces in between."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from workers.engine.core.choice import GrammarState
from workers.engine.core.draft import OWN, SIBLING, Draft, Guess, Support
from workers.engine.core.sequence import Sequence
from workers.engine.speculation.acceptance import Acceptance, Luck
from workers.engine.speculation.ngrams import LONGEST_MATCH, Match, NgramIndex
from workers.engine.speculation.siblings import BORDER, Siblings

_MAX_LEGS = 24
"""The most guesses in a draft."""

_MAX_DRAFT = 64
"""The most tokens in a draft, including forced ones."""

_MAX_INDEXED = 16_384
"""The most tokens of one sequence that are indexed; they take up to 6 MB."""

_MAX_INDEXED_AT_ONCE = 1024
"""The most tokens indexed in one step; they take 4 ms. Later steps index the rest of a prompt."""


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

    def after(self, known: Rows[int]) -> Self | None:
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


def candidates(token_ids: Rows[int], matches: Rows[Match]) -> list[Candidate]:
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


def support(chosen: Candidate, others: Rows[Candidate], num_matches: int) -> Support:
    """Return how strongly the matches agree on ``chosen``."""
    if not others:
        return Support.ALONE if num_matches == 1 else Support.ALL
    rest = sum(candidate.weight for candidate in others)
    return Support.MOST if chosen.weight >= 2 * rest else Support.SOME


@dataclass(slots=True)
class Proposal:
    """A draft that may be cut after any of its legs.

    A leg is a guess and what the grammar forces after it, up to the next token that is sampled.
    """

    token_ids: list[int]
    guesses: list[Guess | None] = field(default_factory=list)
    grammars: list[GrammarState | None] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """How many tokens the draft has with its first leg, its first two, and so on."""
    shares: list[float] = field(default_factory=list)
    """The probability that its first leg is right, its first two, and so on."""

    def cut(self, num_legs: int) -> Draft:
        """Return the draft of the first legs, of which there is at least one."""
        end = self.ends[num_legs - 1]
        return Draft(
            tuple(self.token_ids[:end]),
            (0, *self.ends[:num_legs]),
            tuple(self.grammars[:num_legs]),
            tuple(self.guesses[:end]),
        )


class Drafter:
    """The source of one sequence's drafts."""

    def __init__(
        self, sequence: Sequence, siblings: Siblings, acceptance: Acceptance | Luck
    ) -> None:
        """``acceptance`` is measured over many sequences; this one's own starts from it."""
        self._sequence = sequence
        self._siblings = siblings
        self._index = NgramIndex()
        self.acceptance = Luck.make_for_sequence(acceptance)

    def propose(self, least: float) -> Proposal:
        """Guess what follows, while it is right with a probability of at least ``least``.

        Raises GrammarError.
        """
        self.acceptance.step()
        self._read()
        sequence = self._sequence
        walk = Walk(sequence)
        proposal = Proposal(walk.drafted)
        room = min(_MAX_DRAFT, sequence.max_total_tokens - sequence.num_tokens - 1)
        place, share = None, 1.0
        while len(walk.drafted) < room and len(proposal.ends) < _MAX_LEGS:
            if (forced := walk.forced) is not None:
                token_id, guess = forced, None
            elif (place := self._place(walk, place)) is not None:
                token_id, guess = place.token_id, place.guess
                share *= self.acceptance.share(guess)
            else:
                break
            if share < least or not walk.take(token_id):
                break
            if not sequence.rules.every_position and not walk.take_forced(room):
                break
            num_forced = len(walk.drafted) - len(proposal.guesses) - 1
            proposal.guesses += [guess, *[None] * num_forced]
            proposal.grammars.append(walk.grammar_here())
            proposal.ends.append(len(walk.drafted))
            proposal.shares.append(share)
        return proposal

    def _read(self) -> None:
        """Index the sequence's new tokens except the last, which must not find itself."""
        known = len(self._index.token_ids)
        end = min(self._sequence.num_tokens - 1, _MAX_INDEXED, known + _MAX_INDEXED_AT_ONCE)
        if known < end:
            self._index.extend(self._sequence.token_ids[known:end])

    def _place(self, walk: "Walk", previous: Place | None) -> Place | None:
        """Return where to copy the next token from: the position after the previous place, if that
        is in the sequence's own text and still matches; otherwise the most promising place."""
        if previous is not None and previous.guess.source == OWN:
            place = previous.after(walk.token_ids)
            if place is not None:
                return place
        sources = [(OWN, self._index)]
        key = self._sequence.origin.family
        if key is not None and (family := self._siblings.find(key)) is not None:
            sources.append((SIBLING, family.index))
        best, best_share = None, 0.0
        for source, index in sources:
            place = self._best(walk, source, index)
            if place is not None and (share := self.acceptance.share(place.guess)) > best_share:
                best, best_share = place, share
        return best

    def _best(self, walk: "Walk", source: int, index: NgramIndex) -> Place | None:
        """Return, of the places in one source that the grammar allows, the one that most other
        places agree with."""
        token_ids = walk.token_ids if source == OWN else index.token_ids
        matches = index.find(walk.token_ids[-LONGEST_MATCH:])
        ranking = candidates(token_ids, matches)
        while ranking and not walk.allows(ranking[0].token_id):
            del ranking[0]
        if not ranking:
            return None
        chosen = ranking[0]
        guess = Guess(source, chosen.match.length, support(chosen, ranking[1:], len(matches)))
        return Place(token_ids, chosen.match.position, guess, len(walk.token_ids))


class Walk:
    """A sequence's tokens with those drafted so far, and the grammar's state after them."""

    def __init__(self, sequence: Sequence) -> None:
        self.token_ids = sequence.token_ids.copy()
        self.drafted: list[int] = []
        self._grammar = sequence.choice.grammar
        self._end_ids = sequence.choice.stop_checker.end_ids

    @property
    def forced(self) -> int | None:
        return self._grammar.forced if self._grammar is not None else None

    def allows(self, token_id: int) -> bool:
        """Return whether the grammar, if there is one, allows the token next."""
        return self._grammar is None or self._grammar.allows(token_id)

    def take(self, token_id: int) -> bool:
        """Draft a token. Return False, and end the walk, if nothing is to be computed after it:
        the grammar refuses it, or it ends the choice."""
        if token_id in self._end_ids or not self.allows(token_id):
            return False
        if self._grammar is not None:
            if not self.drafted:  # a copy takes longer than most steps spend on a draft
                self._grammar = self._grammar.copy()
            if self._grammar.consume(token_id):
                return False
        self.token_ids.append(token_id)
        self.drafted.append(token_id)
        return True

    def take_forced(self, room: int) -> bool:
        """Draft what the grammar forces. Return False, and end the walk, if the draft would have
        more than ``room`` tokens, or the choice ends there."""
        while (token_id := self.forced) is not None:
            if len(self.drafted) == room or not self.take(token_id):
                return False
        return True

    def grammar_here(self) -> GrammarState | None:
        """Return the grammar's state, which the rest of the walk does not change."""
        return None if self._grammar is None else self._grammar.copy()
