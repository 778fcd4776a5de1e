"""What a sequence is made of, apart from its tokens: one part for each of its users. No torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.engine.core.request import Audience

UNPLACED = -1

Processor = Callable[[list[int], Any], object]
"""Changes logits, a tensor [vocabulary], in place, given the tokens so far."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sequence comes from, and who waits for it."""

    prompt_index: int = 0
    choice_index: int = 0
    """The candidate's index among its prompt's candidates."""
    priority: int = 0
    audience: Audience = Audience.NOBODY
    organization: str = ""
    family: bytes | None = None
    """A digest of constraint, organization and cache salt. Sequences of one family produce similar
    text, and may draft from each other's output."""


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """How a sequence's tokens are chosen, beyond what its request's numbers say."""

    every_position: bool = False
    """Every output token needs logits of its own, even one that the grammar forces."""
    processor: Processor | None = None
    """The request's custom logit processor."""
    dry_breakers: frozenset[int] = frozenset()
    """DRY's sequence breakers: no repetition extends across one of these tokens."""
    penalizes_prompt: bool = False
    """The repetition penalty counts the prompt's tokens too."""
    allowed_bits: NDArray[np.int32] | None = None
    """One bit for each token that ``allowed_token_ids`` allows [words]; None if all are."""


@dataclass(slots=True)
class Turn:
    """A sequence's place among those that wait and run, kept by the scheduler."""

    arrival: int = UNPLACED
    """Orders sequences of one rank."""
    promoted: bool = False
    """Ranks above every priority, since it was overtaken too often."""
    passed_over: int = 0
    """How many others started while the rest of its prompt waited."""
    has_yielded: bool = False
    """It was preempted for an organization that ran nothing."""
    num_at_start: int = 0
    """Tokens that it had when it last got a slot."""
    num_cached_at_start: int = 0
    """Those of them that it did not have to compute again."""
    num_charged: int = 0
    """Tokens that its organization has been charged for, cached ones included."""


class PendingState(NamedTuple):
    """A state that a step saves. It may be used once its tokens are the sequence's, and have led to
    finite logits."""

    border: int
    """How many tokens lead to it. Some may be drafted."""
    row: int
    is_passing: bool
    """The state of a later position takes its place."""


@dataclass(slots=True)
class SequenceStates:
    """The saved states of a sequence, for models that keep states beside the blocks."""

    restored_from: int | None = None
    """The row of the state that the sequence starts from, unless it starts with its first token."""
    borders: set[int] = field(default_factory=set)
    """Positions at which another sequence may want to begin."""
    pending: list[PendingState] = field(default_factory=list)
    passing: bytes | None = None
    """The hash of the newest state that is only passing."""


@dataclass(slots=True)
class PromptHashes:
    """The hashes of a prompt's full blocks, which all sequences of the prompt share."""

    num_tokens: int = 0
    """Of the prompt."""
    hashes: list[bytes] = field(default_factory=list)
    """Empty until the first of the sequences asks for its own."""


@dataclass(slots=True)
class Prefix:
    """What the prefix cache knows of a sequence."""

    salt: bytes = b""
    """The salt of the hashes under which its blocks are cached."""
    reuse_limit: int | None = None
    """Tokens from this position on are computed even if cached: their logits are needed."""
    prompt: PromptHashes = field(default_factory=PromptHashes)
    hashes: list[bytes] = field(default_factory=list)
    """One for each full block, as far as they were asked for."""
    num_stored: int = 0
    """Full blocks that the prefix cache knows."""
    states: SequenceStates = field(default_factory=SequenceStates)
