"""How likely a guess is right, learnt from the guesses before."""

from typing import Self

from workers.engine.core.draft import Guess, Support

_FIRST_SHARES = (0.0, 0.2, 0.35, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.92, 0.95)
"""The assumed acceptance by matched tokens, before any is measured."""

_SUPPORT = {Support.ALONE: 1.0, Support.ALL: 1.0, Support.MOST: 0.8, Support.SOME: 0.4}
"""What they are multiplied by."""

_WEIGHT = 3.0
"""The weight of the share to begin with, in guesses."""

_KEEP = 0.999
"""The weight that a guess keeps from step to step: half of it after 690 steps."""

_MOST = 0.998


class Acceptance:
    """The share of right guesses of all sequences, by source, matched tokens and support.

    Old guesses count less with each step, whether or not it guesses.
    """

    def __init__(self) -> None:
        self._step = 0
        self._records: dict[Guess, _Record] = {}

    def step(self) -> None:
        """Begin a step: all guesses so far count a little less."""
        self._step += 1

    def share(self, guess: Guess) -> float:
        """Return the probability that a guess is right."""
        first = _FIRST_SHARES[guess.matched] * _SUPPORT[guess.support]
        record = self._records.get(guess)
        if record is None:
            return first
        record.fade(_KEEP, self._step)
        return (record.right + first * _WEIGHT) / (record.expected + _WEIGHT)

    def note(self, guess: Guess, is_right: bool) -> None:
        """Count a guess whose token is known now."""
        record = self._records.setdefault(guess, _Record())
        record.fade(_KEEP, self._step)
        record.note(1.0, is_right)


class Luck:
    """The acceptance of a group of sequences, or of one: the rate of the larger group, scaled by
    how much better or worse than expected this one did, with decay.

    So a sequence whose guesses were wrong stops drafting, and tries again later.
    """

    def __init__(
        self, of_more: "Acceptance | Luck", keep: float, weight: float, first: float = 1.0
    ) -> None:
        """``keep`` is the weight that a guess keeps from step to step, ``first`` the luck that is
        assumed before any is known, and ``weight`` its weight in right guesses."""
        self._of_more = of_more
        self._keep = keep
        self._weight = weight
        self._first = first
        self._step = 0
        self._record = _Record()

    @classmethod
    def make_for_sequence(cls, of_more: "Acceptance | Luck") -> Self:
        return cls(of_more, keep=0.97, weight=0.5)

    @classmethod
    def make_for_prose(cls, of_all: Acceptance) -> Self:
        """Return the luck of all sequences without a constraint. Prose seldom repeats itself by
        more than chance, which takes long to learn kind by kind."""
        return cls(of_all, _KEEP, weight=3.0, first=0.5)

    def step(self) -> None:
        self._step += 1

    def share(self, guess: Guess) -> float:
        record = self._record
        record.fade(self._keep, self._step)
        known = record.right + self._first * self._weight
        luck = known / (record.expected + self._weight)
        return min(_MOST, self._of_more.share(guess) * luck)

    def note(self, guess: Guess, is_right: bool) -> None:
        record = self._record
        record.fade(self._keep, self._step)
        record.note(self._of_more.share(guess), is_right)
        self._of_more.note(guess, is_right)


class _Record:
    """How many recent guesses were expected to be right, and how many were."""

    def __init__(self) -> None:
        self.expected = self.right = 0.0
        self._step = 0

    def fade(self, keep: float, step: int) -> None:
        """Have older guesses count less, up to ``step``."""
        if step > self._step:
            kept = keep ** (step - self._step)
            self.expected *= kept
            self.right *= kept
            self._step = step

    def note(self, expected: float, is_right: bool) -> None:
        self.expected += expected
        self.right += is_right
