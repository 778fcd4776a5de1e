"""Drafts that a test chooses."""

from collections.abc import Iterable
from random import Random
from typing import Any

from workers.engine.core.draft import OWN, Guess
from workers.engine.core.output import ChoiceDelta
from workers.engine.engine import Engine
from workers.engine.speculation.drafter import Drafter, Place, Walk

SURE = Guess(OWN, 12)


class Guesses:
    """The right tokens, a share of them replaced by others."""

    def __init__(self, wrong: float, random: Random) -> None:
        self._wrong = wrong
        self._random = random
        self._texts: list[list[int]] = []

    def learn(self, prompt: Iterable[int], choices: Iterable[ChoiceDelta]) -> None:
        self._texts += [[*prompt, *choice.token_ids] for choice in choices]

    def place(self, walk: Walk) -> Place | None:
        """Where a text goes on that begins like the walk; else after any token."""
        known = walk.token_ids
        wrong = self._random.random() < self._wrong
        texts = [t for t in self._texts if t[: len(known)] == known and len(t) > len(known)]
        if texts and not wrong:
            return Place(self._random.choice(texts), len(known), SURE, len(known))
        if not wrong:
            return None
        return Place([self._random.randrange(1, 400)], 0, SURE, len(known))


class Always(Guesses):
    """One token, alone."""

    def __init__(self, token_id: int) -> None:
        super().__init__(0.0, Random(0))  # noqa: S311 - draws nothing
        self._token_id = token_id

    def place(self, walk: Walk) -> Place | None:
        return None if walk.drafted else Place([self._token_id], 0, SURE, len(walk.token_ids))


def draft_eagerly(engine: Engine, guesses: Guesses) -> None:
    """Have ``engine`` draft what ``guesses`` says, whatever it costs."""
    assert engine.speculation is not None
    engine.speculation.costs = Costless()  # type: ignore[assignment]
    engine.speculation.make_drafter = lambda *given: Guessing(*given, guesses)  # type: ignore


class Guessing(Drafter):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given[:-1])
        self._guesses: Guesses = given[-1]
        self.acceptance = Sure()  # type: ignore[assignment]

    def _place(self, walk: Walk, previous: Place | None) -> Place | None:
        return self._guesses.place(walk)


class Sure:
    """All guesses are right, however many were not."""

    def step(self) -> None: ...

    def note(self, guess: Guess, is_right: bool) -> None: ...

    def share(self, guess: Guess) -> float:
        return 1.0


class Costless:
    """A step takes the same time, whatever it computes."""

    row_seconds = draft_seconds = 0.0
    forward_seconds = (1.0,) * 129

    def note_rest(self, num_rows: int, seconds: float) -> None: ...
