"""Decides which sequences of a step draft, and how many tokens, by what these cost and yield, and
learns from the outcome."""

import heapq
import logging
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Rows
from itertools import pairwise, repeat

from workers.engine.core.draft import NO_DRAFT, Draft
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import SchedulerOutput
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.speculation.acceptance import Acceptance, Luck
from workers.engine.speculation.drafter import Drafter, Proposal
from workers.engine.speculation.siblings import Siblings

logger = logging.getLogger(__name__)

_LEAST_SHARE = 0.1
"""A leg whose estimated acceptance is lower is never drafted: the estimates are not that good."""

_MARGIN = 1.4
"""A draft must be worth this many times its cost. Estimates are noisy, and a sequence that ends
sooner saves time only if another one can take its slot."""

_SIZES = (1, 4, 8, 16, 32, 64)
_MAX_TOKENS = 128
"""Larger steps have no drafts."""

_ROUNDS = (2, 8)
"""How often each size is measured: minimum and maximum."""

_SECONDS = 0.5
"""Seconds for rounds beyond the minimum."""

_FALL, _RISE = 0.3, 0.03
"""The weights of a new time below, and above, the estimate: a time that other processes lengthened
is less reliable."""


class Speculation:
    """Extends steps by drafted tokens where they are worth their time.

    Another token is worth it if it raises the step's expected yield in tokens by a larger share
    than it raises the step's time. A step of one token is bound by memory, so a few more tokens
    cost little. Where many sequences decode already, another row costs as much as it yields, and
    nothing is drafted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        is_exact: Callable[[Sequence], bool],
        costs: "StepCosts",
        max_tokens: int,
        state_rows: Rows[int] | None = None,
    ) -> None:
        """``is_exact`` returns whether a sequence's samples are independent of the number of
        tokens in a step; ``max_tokens`` bounds that number. If layers keep states, at most as many
        sequences draft in a step as there are ``state_rows`` for copies of theirs."""
        self._scheduler = scheduler
        self._is_exact = is_exact
        self.make_drafter = Drafter
        self._drafters: dict[Sequence, Drafter | None] = {}
        self._siblings = Siblings()
        self._forms, self._prose = Acceptance(), Acceptance()
        self._luck_of_prose = Luck.make_for_prose(self._prose)
        self.costs = costs
        self._max_tokens = max_tokens
        self._state_rows = state_rows
        self.drafted_tokens = 0
        self.accepted_tokens = 0

    def extend(self, step: SchedulerOutput) -> None:
        """Give sequences of ``step`` drafts, and blocks for them.

        A step that computes a part of a prompt is left as it is: its tokens are not cheap.
        """
        self._drafters = {s: d for s, d in self._drafters.items() if not s.finished}
        chunks = step.chunks
        num_tokens = sum(size for _, size in chunks)
        forward_seconds = self.costs.forward_seconds[: self._max_tokens + 1]
        is_full = num_tokens + 1 >= len(forward_seconds)
        if is_full or not all(_reaches_end(*chunk) for chunk in chunks):
            return
        plan = _Plan(
            forward_seconds,
            self.costs.row_seconds,
            self.costs.draft_seconds,
            num_tokens,
            len(chunks),
        )
        least = max(_LEAST_SHARE, plan.least_share)
        if least > 1:
            return
        for acceptance in (self._forms, self._prose, self._luck_of_prose):
            acceptance.step()
        proposals = [self._propose(sequence, least) for sequence, _ in chunks]
        rows = repeat(None) if self._state_rows is None else self._state_rows
        for (index, num_legs), row in zip(plan.choose(proposals).items(), rows, strict=False):
            draft = proposals[index].cut(num_legs)._replace(state_row=row)
            if self._scheduler.extend(step, index, draft):
                self.drafted_tokens += len(draft.token_ids)

    def settle(self, sequences: Iterable[Sequence], spoilt: Collection[Sequence]) -> None:
        """Keep the accepted drafted tokens of a step's sequences, and learn from them.

        A ``spoilt`` sequence drafted a token whose logits were not finite, which may have left keys
        and values that nothing may read. It computes all its tokens again, and drafts no more.
        """
        for sequence in dict.fromkeys(sequences):
            draft = sequence.draft
            if draft is NO_DRAFT:
                continue
            before = sequence.num_computed
            self.accepted_tokens += self._scheduler.settle(sequence, sequence in spoilt)
            if sequence in spoilt:
                self._drafters[sequence] = None
            elif (drafter := self._drafters.get(sequence)) is not None:
                _learn(drafter, draft, sequence.token_ids[before:])

    def remember(self, sequence: Sequence) -> None:
        """Remember the output of a sequence that has ended, for its siblings."""
        if sequence.origin.family is not None:
            self._siblings.add(sequence.origin.family, sequence.token_ids, sequence.prompt_len)

    def _propose(self, sequence: Sequence, least: float) -> Proposal:
        if sequence not in self._drafters:
            drafts = sequence.may_draft and self._is_exact(sequence)
            is_prose = sequence.choice.grammar is None
            acceptance = self._luck_of_prose if is_prose else self._forms
            self._drafters[sequence] = (
                self.make_drafter(sequence, self._siblings, acceptance) if drafts else None
            )
        try:
            drafter = self._drafters[sequence]
            if drafter is not None and sequence.is_ready_to_draft:
                return drafter.propose(least)
        except Exception:  # the sequence goes on without a draft
            logger.warning("a sequence no longer drafts", exc_info=True)
            self._drafters[sequence] = None
        return Proposal([])


class StepCosts:
    """The seconds of a forward pass by tokens, of masks and sampling by row of logits, and of the
    states of a sequence that drafts."""

    def __init__(
        self, forward: Callable[[int], None], copy: Callable[[], object] | None = None
    ) -> None:
        """``forward`` runs a forward pass of the given number of decoding sequences. ``copy``
        copies the states of one; None if there are none."""
        self.forward_seconds = _curve(_measure(forward))
        """The seconds of passes of 0 to 128 tokens, which never decrease."""
        self.draft_seconds = 0.0 if copy is None else 2 * _time_copy(copy)
        """The seconds that a sequence's draft costs beside its tokens: its state is copied, and
        copied back if a token is refused."""
        self.row_seconds = 0.0
        """The seconds of masks and sampling per row of logits."""

    def note_rest(self, num_rows: int, seconds: float) -> None:
        """Record the time of masks and sampling in a step."""
        row_seconds = seconds / num_rows
        weight = _FALL if row_seconds < self.row_seconds else _RISE
        first = not self.row_seconds
        self.row_seconds = (
            row_seconds if first else (1 - weight) * self.row_seconds + weight * row_seconds
        )


def _measure(forward: Callable[[int], None]) -> dict[int, float]:
    """Return the shortest time of each size. Sizes are measured in turn, so that other load on the
    machine affects all of them."""
    shortest = dict.fromkeys(_SIZES, float("inf"))
    least, most = _ROUNDS
    began = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - began > _SECONDS:
            break
        for size in _SIZES:
            start = time.perf_counter()
            forward(size)
            shortest[size] = min(shortest[size], time.perf_counter() - start)
    return shortest


def _time_copy(copy: Callable[[], object]) -> float:
    """Return the shortest time of a copy. The first one also gets the memory."""
    copy()
    shortest = float("inf")
    for _ in range(_ROUNDS[1]):
        start = time.perf_counter()
        copy()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def _curve(measured: dict[int, float]) -> list[float]:
    """Interpolate linearly between measured sizes; beyond, use the slope of their larger half."""
    half = _SIZES[len(_SIZES) // 2]
    slope = max(0.0, measured[_SIZES[-1]] - measured[half]) / (_SIZES[-1] - half)
    last = measured[_SIZES[-1]] + slope * (_MAX_TOKENS - _SIZES[-1])
    points = [(0, measured[1]), *measured.items(), (_MAX_TOKENS, last)]
    curve = [points[0][1]]
    for (before, _), (after, seconds) in pairwise(points):
        low, width = curve[-1], after - before
        rise = max(0.0, seconds - low)
        curve += [low + rise * i / width for i in range(1, width + 1)]
    return curve


class _Plan:
    """The expected time and tokens of one step, while legs are added to it."""

    def __init__(
        self,
        forward_seconds: Rows[float],
        row_seconds: float,
        draft_seconds: float,
        num_tokens: int,
        num_rows: int,
    ) -> None:
        self._forward_seconds = forward_seconds
        self._row_seconds = row_seconds
        self._draft_seconds = draft_seconds
        self._num_tokens = num_tokens
        self._seconds = self._forward_seconds[num_tokens] + num_rows * self._row_seconds
        self._expected = float(num_rows)

    @property
    def least_share(self) -> float:
        """The probability of acceptance at which a leg of one token is worth its time."""
        return _MARGIN * self._expected * self._cost(1, leg=0) / self._seconds

    def choose(self, proposals: list[Proposal]) -> dict[int, int]:
        """Return how many legs of each proposal to take: the likeliest legs, while they are worth
        their time."""
        chosen: dict[int, int] = {}
        legs = [
            (-proposal.shares[0], i, 0) for i, proposal in enumerate(proposals) if proposal.ends
        ]
        heapq.heapify(legs)
        while legs:
            negative, index, leg = heapq.heappop(legs)
            proposal = proposals[index]
            size = proposal.ends[leg] - (proposal.ends[leg - 1] if leg else 0)
            if not self._add(size, -negative, leg):
                continue
            chosen[index] = leg + 1
            if leg + 1 < len(proposal.ends):
                heapq.heappush(legs, (-proposal.shares[leg + 1], index, leg + 1))
        return chosen

    def _add(self, size: int, share: float, leg: int) -> bool:
        """Add a sequence's ``leg``-th leg, of ``size`` tokens, if it is worth its time. Return
        whether it was."""
        if self._num_tokens + size >= len(self._forward_seconds):
            return False
        cost, least = self._cost(size, leg), self._cost(1, leg)
        # If the guess is right, the next step would compute the forced tokens after it.
        wasted = least + (1 - share) * (cost - least)
        if share * self._seconds < _MARGIN * self._expected * wasted:
            return False
        self._num_tokens += size
        self._seconds += cost
        self._expected += share
        return True

    def _cost(self, size: int, leg: int) -> float:
        """Return the seconds that a sequence's ``leg``-th leg adds to the step."""
        now = self._forward_seconds[self._num_tokens]
        rest = self._row_seconds + (0 if leg else self._draft_seconds)
        return self._forward_seconds[self._num_tokens + size] - now + rest


def _reaches_end(sequence: Sequence, size: int) -> bool:
    return sequence.num_computed + size == sequence.num_tokens


def _learn(drafter: Drafter, draft: Draft, gained: list[int]) -> None:
    """Count a draft's right and wrong guesses, given the tokens that were sampled in its place."""
    for guess, drafted, actual in zip(draft.guesses, draft.token_ids, gained, strict=False):
        if guess is not None:
            drafter.acceptance.note(guess, drafted == actual)
        if drafted != actual:
            return
