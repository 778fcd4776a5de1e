"""What comes out of the engine: what the choices of a request gain in a step. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from completions.contract.job_request import LogprobParams, Task
from completions.contract.usage import Usage
from workers.engine.core.request import Request
from workers.engine.exceptions import EngineError
from workers.engine.text.finish import FinishReason


class Support(NamedTuple):
    """The tokens that one token was drawn among."""

    size: int
    log_mass: float
    """The natural logarithm of what they weighed together before they were made to sum to 1."""
    ids: list[int]
    """The likeliest of them in descending order, as many as the request asks for."""


@dataclass(slots=True, eq=False)
class TokenLogprobs:
    """Natural logarithms of the probabilities of n consecutive tokens, one row for each.

    Those of a prompt come from the model's raw logits, before penalties, masks and temperature, so
    they are comparable between requests; those of output as ``LogprobsMode`` says. None is below
    -9999. The first row of a prompt has no
    probabilities: its values are NaN and its ``top_ids`` -1.
    """

    chosen: NDArray[np.float32]
    """[n], the values of the tokens themselves."""
    top_ids: NDArray[np.int64]
    """[n, k], the likeliest tokens in descending order, the lower id first among equals."""
    top: NDArray[np.float32]
    """[n, k], the values of ``top_ids``."""
    named: NDArray[np.float32]
    """[n, m], the values of the ids that the request names."""
    offsets: list[int] = field(default_factory=list)
    """Characters of the choice's text before each token; empty for a prompt."""
    forced: list[bool] = field(default_factory=list)
    """Whether the grammar allowed no other token; empty unless the request asks for the grammar's
    effect."""
    support: list[Support] = field(default_factory=list)
    """Of each token; empty unless the request asks for it."""
    ranks: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[n], how many tokens are at least as likely as each; empty unless a prompt's are asked
    for."""

    @classmethod
    def unknown(cls, num_rows: int, params: LogprobParams) -> Self:
        """Return rows for the caller to fill in."""
        top, named = params.top_logprobs_num, len(params.token_ids_logprob)
        return cls(
            np.full(num_rows, np.nan, np.float32),
            np.full((num_rows, top), -1, np.int64),
            np.full((num_rows, top), np.nan, np.float32),
            np.full((num_rows, named), np.nan, np.float32),
            ranks=np.zeros(num_rows if params.ranks else 0, np.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return all rows of ``parts``, which must not be empty."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.chosen for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top for part in parts]),
            np.concatenate([part.named for part in parts]),
            [offset for part in parts for offset in part.offsets],
            [forced for part in parts for forced in part.forced],
            [support for part in parts for support in part.support],
            np.concatenate([part.ranks for part in parts]),
        )

    def rows(self, start: int, stop: int) -> Self:
        """Return a view of some rows, as far as they are arrays."""
        rows = slice(start, stop)
        arrays = self.chosen[rows], self.top_ids[rows], self.top[rows], self.named[rows]
        return type(self)(*arrays, ranks=self.ranks[rows])


@dataclass(slots=True)
class ConstraintEffect:
    """How far a grammar shaped a choice."""

    forced_tokens: int = 0
    """Tokens that the grammar left no choice about, those of earlier runs included."""
    steps: int = 0
    """Tokens that this run of the request sampled among several."""
    overruled: int = 0
    """Steps whose likeliest token the grammar did not allow."""
    removed: float = 0.0
    """The probability of the masked tokens, summed over the steps."""
    forced_scored: int = 0
    """Forced tokens of this run for which the model computed its own likeliest token: all of them
    where the request asks for log probabilities."""
    forced_overruled: int = 0
    """How many of those another token was likelier than."""

    def add_step(self, removed: float, overruled: bool) -> None:
        self.steps += 1
        self.removed += removed
        self.overruled += overruled

    def add_forced(self, overruled: bool) -> None:
        self.forced_scored += 1
        self.forced_overruled += overruled


@dataclass(frozen=True, slots=True)
class LimitEnding:
    """How a choice ended whose length limit ended it, and which was to be closed in time."""

    is_whole: bool
    """Whether its text is one of the constraint's."""
    closed_at: int | None
    """How many tokens came before those that closed it; None if none did: it is not whole, or its
    text could have ended anywhere."""


@dataclass(slots=True)
class ChoiceDelta:
    """The output of one choice in one step."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    """Includes a sampled end or stop token."""
    text: str = ""
    """Excludes the text of a sampled end or stop token."""
    finish_reason: FinishReason | None = None
    matched_stop: int | str | None = None
    matched_stop_text: str | None = None
    """The text that a stop regex matched."""
    forced: list[int] = field(default_factory=list, compare=False)
    """Places in ``token_ids`` of the tokens about which the grammar left no choice."""
    hidden_states: list[float] | None = None
    """[hidden], in the final delta only: the output of the last layer and final norm from which
    the last token was sampled. None for a choice without tokens."""
    routed_experts: NDArray[np.int32] | None = field(default=None, compare=False)
    """[positions, layers with experts, top_k], in the final delta only: the experts of prompt and
    output tokens, except for the last token, which is never computed."""
    effect: ConstraintEffect | None = field(default=None, compare=False)
    """In the final delta only: how far the grammar shaped the choice."""
    limit_ending: LimitEnding | None = None
    """In the final delta of a choice that its length limit ended, if it was to be closed."""
    logprobs: TokenLogprobs | None = None
    """The log probabilities of ``token_ids``."""
    prompt_logprobs: TokenLogprobs | None = None
    """The prompt's log probabilities from ``logprob_start_len`` on. They come in the first delta
    of a prompt's first choice, before any delta of its other choices."""
    num_allowed: int | None = None
    """Of a continuation that is scored under a grammar: how many of its tokens, from the first on,
    the grammar allows."""
    cached_tokens: int = field(default=0, compare=False)
    """Prompt tokens that were in the prefix cache; only in the first delta."""

    def add(self, later: Self) -> None:
        """Append the choice's next delta."""
        self.forced += [len(self.token_ids) + place for place in later.forced]
        self.token_ids += later.token_ids
        self.text += later.text
        self.hidden_states, self.routed_experts = later.hidden_states, later.routed_experts
        self.finish_reason, self.matched_stop = later.finish_reason, later.matched_stop
        self.matched_stop_text, self.effect = later.matched_stop_text, later.effect
        parts = [part for part in (self.logprobs, later.logprobs) if part is not None]
        self.logprobs = TokenLogprobs.concatenate(parts) if parts else None
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
        self.num_allowed, self.limit_ending = later.num_allowed, later.limit_ending
        self.cached_tokens += later.cached_tokens


@dataclass(slots=True)
class RequestOutput:
    """The output of one request in one step.

    The last output has ``finished`` and ``usage``. With ``error``, the whole request failed and
    ``deltas`` hold what came before the failure.
    """

    request_id: str
    deltas: list[ChoiceDelta]
    finished: bool = False
    error: EngineError | None = None
    usage: Usage | None = None


@dataclass(slots=True)
class Completion:
    """A whole request as ``Engine.generate`` returns it: each choice is one accumulated delta."""

    request_id: str
    choices: list[ChoiceDelta]
    error: EngineError | None = None
    usage: Usage | None = None

    @classmethod
    def begin(cls, request: Request) -> Self:
        """Return the completion of a request that has no output yet."""
        num_choices = len(request.prompts) * request.sampling.n
        if request.task is Task.SCORE:
            num_choices = request.num_sequences
        return cls(request.request_id, [ChoiceDelta(i) for i in range(num_choices)])

    def add(self, output: RequestOutput) -> None:
        for delta in output.deltas:
            self.choices[delta.index].add(delta)
        self.error, self.usage = output.error, output.usage
