"""One choice of one request: its tokens, how many are computed, and what memory it holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workers.engine.choice import Choice
from workers.engine.model.record import Record
from workers.engine.request import SamplingParams
from workers.engine.sampling.logprob_record import LogprobRecord
from workers.engine.text.stop_checker import Finish

if TYPE_CHECKING:
    from workers.engine.request_state import RequestState

UNPLACED = -1

Processor = Callable[[list[int], Any], None]
"""Changes logits, a tensor [vocabulary], in place, given the tokens so far."""


@dataclass(slots=True, eq=False)
class Sequence:
    """``token_ids`` is the prompt followed by the output; the first ``num_computed`` of them are
    in the KV cache. There is no prefill or decode phase: each step computes some of the rest, and
    when none is left the next token is sampled. ``every_position`` asks that each output token
    be sampled from logits of its own, even one that the grammar forces. ``record`` and
    ``logprobs`` are there if the request asks for more than tokens. Where a prompt is scored, the
    other choices of the prompt are ``held`` back until that is done, and then share its blocks.
    ``processor`` is the request's custom one; DRY counts no repetition across ``dry_breakers``.
    ``penalizes_prompt``: the repetition penalty is for the prompt's tokens, too.

    A preempted sequence computes all its tokens again. ``cache_salt`` begins the hashes under
    which its blocks are cached (``block_hashes``; ``num_stored`` full blocks are). Tokens from
    ``cache_reuse_limit`` on are computed even if they are cached, for somebody who needs their
    logits. ``cached_tokens`` is how much of the prompt was cached when the sequence first ran.

    ``arrival`` orders sequences of one rank: the priority, or more than any if ``promoted``, after
    it was passed over too often. ``passed_over`` counts the starts of others that went before the
    rest of its prompt. ``num_charged`` is the number of its tokens that
    its organization has paid for, those that were cached included. ``num_in_flight`` is how many
    tokens behind ``token_ids`` a step that is under way will give it.
    """

    state: RequestState = field(init=False)
    prompt_index: int
    choice_index: int
    sampling: SamplingParams
    choice: Choice
    token_ids: list[int]
    prompt_len: int
    max_total_tokens: int
    priority: int = 0
    every_position: bool = False
    organization: str = ""
    adapter: str | None = None
    cache_salt: bytes = b""
    cache_reuse_limit: int | None = None
    record: Record | None = None
    logprobs: LogprobRecord | None = None
    held: list[Sequence] = field(default_factory=list)
    processor: Processor | None = None
    dry_breakers: frozenset[int] = frozenset()
    penalizes_prompt: bool = False
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    slot: int = UNPLACED
    finished: bool = False
    block_hashes: list[bytes] = field(default_factory=list)
    num_stored: int = 0
    cached_tokens: int = 0
    arrival: int = UNPLACED
    promoted: bool = False
    passed_over: int = 0
    num_charged: int = 0
    num_in_flight: int = 0
    _withheld: list[int] = field(default_factory=list)

    def append(self, token_id: int) -> Finish | None:
        """Take an output token; return why the choice ends, if it does. Raises GrammarError."""
        if self.choice.finish is not None:
            self.token_ids += self._withheld
            return self.choice.finish
        if self.logprobs is not None:
            self.logprobs.note_offset(self.choice.num_characters)
        self.token_ids.append(token_id)
        return self.choice.append(token_id)

    def withhold_end(self) -> bool:
        """Whether a choice that has ended, in an earlier run or before its first token, must be
        computed for what is still to be told of it.

        It steps back before its last token, if it has any: what led to that token is computed,
        and then it is taken, whatever is sampled.
        """
        if self.record is not None and self.num_output_tokens:
            self._withheld = [self.token_ids.pop()]
            return True
        return self.logprobs is not None and self.logprobs.prompt_is_due

    @property
    def rank(self) -> float:
        return math.inf if self.promoted else self.priority

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def next_output(self) -> int:
        """Which token of the output the next one to be sampled is, counted from 0."""
        return len(self.token_ids) - self.prompt_len + self.num_in_flight

    @property
    def below_min_tokens(self) -> bool:
        """Whether the next token comes too early to end the choice."""
        return self.next_output < self.sampling.min_tokens


Piece = tuple[Sequence, int, int]
"""Tokens of a sequence that are next to each other: the position of the first, and how many."""
