"""One prompt with the output of one candidate: its tokens and the memory they hold."""

import math
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Self

from completions.contract.sampling import SamplingParams
from workers.engine.core.choice import Choice
from workers.engine.core.continuation import Continuation
from workers.engine.core.draft import NO_DRAFT, Draft
from workers.engine.core.logprob_record import LogprobRecord
from workers.engine.core.record import Record
from workers.engine.core.sequence_parts import UNPLACED, Origin, Prefix, SamplingRules, Turn
from workers.engine.core.shared_ids import TokenIds
from workers.engine.text.finish import Finish


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens that a step computes and extends.

    There is no prefill or decode phase: each step computes some of the tokens that are not in the
    KV cache yet, and samples the next one when none is left. A preempted sequence computes all
    its tokens again.
    """

    sampling: SamplingParams
    choice: Choice
    token_ids: TokenIds
    """The prompt, then the output."""
    prompt_len: int
    max_total_tokens: int
    origin: Origin = field(default_factory=Origin)
    rules: SamplingRules = field(default_factory=SamplingRules)
    adapter: str | None = None
    record: Record | None = None
    """Collects hidden states and routed experts, if the request asks for them."""
    logprobs: LogprobRecord | None = None
    """Collects log probabilities, if the request asks for them."""
    continuation: Continuation | None = None
    """The last of ``token_ids``, if they are scored and nothing is sampled."""
    held: list[Self] = field(default_factory=list)
    """Other choices of this prompt. They wait until the prompt is scored, then share its blocks."""

    turn: Turn = field(default_factory=Turn)
    prefix: Prefix = field(default_factory=Prefix)
    slot: int = UNPLACED
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Tokens in the KV cache, from the first on."""
    num_begun: int = 0
    """Prompt tokens that a step has begun to compute, or that were cached."""
    cached_tokens: int = 0
    """Prompt tokens that were in the prefix cache when the sequence first ran."""
    finished: bool = False

    draft: Draft = NO_DRAFT
    """The drafted tokens that the current step computes after ``token_ids``."""
    num_in_flight: int = 0
    """Tokens beyond ``token_ids`` that the step in flight adds."""
    _withheld: list[int] = field(default_factory=list)

    def append(self, token_id: int) -> Finish | None:
        """Append an output token. Return why the choice ends, if it does. Raises GrammarError."""
        if self.logprobs is not None:
            self.logprobs.note_offset(self.choice.num_characters)
        self.token_ids.append(token_id)
        return self.choice.append(token_id)

    def withhold_end(self) -> bool:
        """Prepare an ended choice for a step that it still needs. Return False if it needs none.

        A choice may end in an earlier run or before its first token, and its record or its
        prompt's log probabilities may still be missing. It then steps back before its last token:
        the step computes what led to that token, and :meth:`restore_end` appends the token whatever
        was sampled.
        """
        if self.record is not None and self.num_output_tokens:
            self._withheld = [self.token_ids.pop()]
            return True
        return self.logprobs is not None and self.logprobs.prompt_is_due

    def restore_end(self) -> None:
        """Append the token that :meth:`withhold_end` took back."""
        self.token_ids.extend(self._withheld)

    @property
    def may_draft(self) -> bool:
        """Whether a step may compute drafted tokens. A custom processor may keep state, and a
        record must not hold rejected tokens."""
        return self.rules.processor is None and self.record is None

    @property
    def is_ready_to_draft(self) -> bool:
        """Whether the next token is an ordinary one: the choice goes on, nothing waits for the
        token, and its grammar is quick to follow."""
        scores_prompt = self.logprobs is not None and self.logprobs.prompt is not None
        grammar = self.choice.grammar
        is_slow = grammar is not None and grammar.is_slow
        return self.choice.finish is None and not (self.held or scores_prompt or is_slow)

    def follows_draft(self, num_drafted: int) -> bool:
        """Return whether the tokens appended since the step began equal the first ``num_drafted``
        of the draft."""
        gained = self.token_ids[self.num_computed :]
        return len(gained) == num_drafted and gained == list(self.draft.token_ids[:num_drafted])

    def count_accepted(self) -> int:
        """Return how many tokens of the draft equal those appended since the step began."""
        gained = self.token_ids[self.num_computed :]
        pairs = zip(self.draft.token_ids, gained, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def tokens_at(self, position: int, size: int) -> list[int]:
        """Return ``size`` tokens from ``position`` on, of the sequence and then of its draft."""
        token_ids = self.token_ids[position : position + size]
        if missing := size - len(token_ids):
            first = max(0, position - len(self.token_ids))
            token_ids += self.draft.token_ids[first : first + missing]
        return token_ids

    @property
    def rank(self) -> float:
        return math.inf if self.turn.promoted else self.origin.priority

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def is_starting(self) -> bool:
        """Whether tokens that it had when it got its slot are not computed yet."""
        return self.num_computed < self.turn.num_at_start

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def max_output_tokens(self) -> int:
        return self.max_total_tokens - self.prompt_len

    @property
    def num_prompt_used(self) -> int:
        """Prompt tokens that count as used. All of them led to an output token."""
        return self.prompt_len if self.num_output_tokens else self.num_begun

    @property
    def next_output(self) -> int:
        """The index in the output, from 0, of the next token to sample."""
        return len(self.token_ids) - self.prompt_len + self.num_in_flight

    def is_below_min_tokens(self, num_more: int) -> bool:
        """Return whether ``min_tokens`` still forbids an end after ``num_more`` further tokens."""
        return self.next_output + num_more < self.sampling.min_tokens


Piece = tuple[Sequence, int, int]
"""Adjacent tokens of a sequence: the position of the first, and how many."""
