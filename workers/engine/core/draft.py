"""The guessed continuation of one sequence. No torch."""

from enum import IntEnum
from typing import NamedTuple

from workers.engine.core.choice import GrammarState

OWN, SIBLING = 0, 1
"""The sources of guesses: the sequence's own prompt and output, and finished siblings."""


class Support(IntEnum):
    """How much the places that a guess could be copied from agree."""

    ALONE = 0
    """There is one."""
    ALL = 1
    """There are several, and all continue alike."""
    MOST = 2
    """Two thirds of their weight do."""
    SOME = 3


class Guess(NamedTuple):
    """What led to a guessed token."""

    source: int
    """OWN or SIBLING."""
    matched: int
    """How many tokens before it agree with the place that it was copied from."""
    support: Support = Support.ALONE


class Draft(NamedTuple):
    """Tokens that may follow a sequence, which the next step computes as if they did.

    The step samples a token at each of ``rows``, and keeps those that follow from kept tokens. So
    a draft changes when tokens are computed, and never which.
    """

    token_ids: tuple[int, ...] = ()
    rows: tuple[int, ...] = (0,)
    """How many drafted tokens stand before each token that the step samples, in ascending order.
    The last number is that of all drafted tokens."""
    grammars: tuple[GrammarState | None, ...] = ()
    """For each of ``rows`` but the first, the grammar's state before its token."""
    guesses: tuple[Guess | None, ...] = ()
    """For each drafted token what led to it, None where the grammar forces it."""
    state_row: int | None = None
    """The row that gets a copy of the sequence's state before its first drafted token, if layers
    keep states."""


NO_DRAFT = Draft()
