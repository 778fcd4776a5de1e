"""Chooses a token for each row of logits, vectorised, with each row's own parameters."""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.cpu import logits as native_logits
from workers.engine.core.choice import GrammarState
from workers.engine.core.draft import NO_DRAFT
from workers.engine.core.output import TokenLogprobs
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import Row, lay_rows
from workers.engine.exceptions import EngineError
from workers.engine.grammar.effect import Removal, removals
from workers.engine.grammar.mask import GrammarMask
from workers.engine.sampling.bans import AllowedTokens, BadWords, MinTokens
from workers.engine.sampling.custom_processors import CustomProcessors
from workers.engine.sampling.distributions import Distributions
from workers.engine.sampling.drawing import Drawing
from workers.engine.sampling.dry import Dry
from workers.engine.sampling.logits_processors import (
    LogitBias,
    LogitsProcessor,
    Penalties,
)
from workers.engine.sampling.logprobs import PendingScores, Scorer
from workers.engine.sampling.single_buffer import SingleBuffer

_MOST_SORTED = 16
"""From this many rows, waiting to count the survivors is cheaper than sorting whole rows."""


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One token for each row of a step."""

    token_ids: list[int]
    """Meaningless for the rows in ``invalid`` and ``faults``."""
    invalid: list[int]
    """Rows whose logits were not finite."""
    faults: Mapping[int, EngineError]
    """Rows whose own request failed."""
    scores: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """The raw log probabilities of the rows whose sequence records them."""
    drawn: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """The same under what the token was drawn from, for the rows whose request asks for that."""
    removals: Mapping[int, Removal] = field(default_factory=dict)
    """The grammar's effect on the rows whose choice reports it."""
    overruled: frozenset[int] = frozenset()
    """Rows whose token a grammar chose, so that the choice can end in time."""


class Launched(NamedTuple):
    """The tokens that the device is still choosing."""

    token_ids: Tensor
    """[rows], on the device."""
    finite: Tensor
    """Whether each row's logits were finite [rows], on the device."""
    scores: PendingScores


class Use(NamedTuple):
    """A processor, and the rows that ask for it. The others of a step never see it."""

    make: Callable[[], LogitsProcessor]
    is_wanted: Callable[[Row], bool]


CHANGES = (
    Use(Dry, lambda row: row.sequence.sampling.dry_multiplier > 0),
    Use(Penalties, lambda row: row.sequence.sampling.penalizes),
    Use(LogitBias, lambda row: bool(row.sequence.sampling.logit_bias)),
    Use(CustomProcessors, lambda row: row.sequence.rules.processor is not None),
)
BANS = (
    Use(AllowedTokens, lambda row: _bans(row) and bool(row.sequence.sampling.allowed_token_ids)),
    Use(BadWords, lambda row: _bans(row) and bool(row.sequence.sampling.bad_words)),
    Use(MinTokens, lambda row: _bans(row) and _forbids_end(row)),
)
"""What forbids tokens, after all other changes: support is what they leave."""


def _bans(row: Row) -> bool:
    return row.grammar is None  # otherwise its mask leaves the tokens out


def _forbids_end(row: Row) -> bool:
    seq = row.sequence
    return seq.is_below_min_tokens(row.num_drafted) and bool(seq.choice.stop_checker.end_ids)


def _scores_draws(row: Row) -> bool:
    record = row.sequence.logprobs
    return record is not None and record.params.scores_draws


class Sampler:
    """Changes logits and chooses tokens, in this order:

    1. DRY, frequency and presence penalties, repetition penalty, logit bias, the custom processor,
       allowed tokens, bad words, ``min_tokens``, the grammar mask;
    2. for a greedy row, the likeliest token, the lower id among equals;
    3. for any other row, temperature, top-k, top-p over what top-k left, min-p (which keeps
       p >= min_p * p_max), and a draw.

    A row's draw depends on its logits and on (seed, prompt, choice, position) alone: every
    reduction runs along the row, in an order that the number of rows does not change.
    """

    def __init__(self) -> None:
        self._processors = {use: use.make() for use in (*CHANGES, *BANS)}
        self._changes: list[LogitsProcessor] = []
        """The processors that a row of the step asks for."""
        self._bans: list[LogitsProcessor] = []
        self._custom = next(
            each for each in self._processors.values() if isinstance(each, CustomProcessors)
        )
        self._distributions: Distributions | None = None
        """Scores what tokens are drawn from, where a row asks for that."""
        self.scorer = Scorer()
        self._scores = False
        """Whether a row asks for log probabilities."""
        self._rows: list[Sequence] = []
        self._drafting = False
        self._launchable = True
        self._closing: list[tuple[int, GrammarState]] = []
        self._needs_tokens = False
        self._draw: Drawing | None = None
        self._single = SingleBuffer()

    def sample(
        self, logits: Tensor, rows: list[Sequence], mask: GrammarMask | None = None
    ) -> SamplerOutput:
        """Choose a token for each of ``rows`` from ``logits`` [rows, vocabulary].

        A sequence with a draft has a further row for each drafted token. Overwrites the logits.
        """
        self._follow(rows, logits.device)
        raw = self.scorer.keep(logits) if self._scores else logits
        if logits.dtype != torch.float32:
            logits = self._single.copy(logits)
        for processor in self._changes:
            processor.apply(logits)
        sums = self._distributions.sum_all(logits) if self._distributions is not None else ()
        for ban in self._bans:
            ban.apply(logits)
        removed: Mapping[int, Removal] = {}
        if mask is not None:
            reporting = (i for i, seq in enumerate(rows) if seq.choice.effect is not None)
            removed = removals(logits, mask, reporting)
        highest, token_ids = _choose(logits, mask)
        unusable = [row for row, top in enumerate(highest.tolist()) if not math.isfinite(top)]
        if unusable:
            self._custom.blame(highest)
        for row in unusable:
            logits[row], highest[row] = 0, 0
        faults = self._custom.faults
        if self._draw is not None:
            self._draw.fill(token_ids, logits, highest)
        overruled = self._review(token_ids, faults) if mask is not None else frozenset()
        scores = self.scorer.score_rows(raw, token_ids) if self._scores else {}
        drawn = self._score_drawn(logits, highest, token_ids, sums, overruled)
        invalid = [row for row in unusable if row not in faults]
        return SamplerOutput(token_ids.tolist(), invalid, faults, scores, drawn, removed, overruled)

    def can_launch(self, rows: list[Sequence], device: torch.device) -> bool:
        """Return whether :meth:`launch` can choose the tokens of ``rows``. It cannot for recorded
        modules and reported effects of grammars, for choices that come to their limit, for a
        processor that refuses, or if many whole rows must be sorted."""
        self._follow(rows, device)
        if any(grammar.is_closing for _, grammar in self._closing):
            return False
        return self._launchable and (self._draw is None or self._draw.num_sorted <= _MOST_SORTED)

    def needs_tokens(self, rows: list[Sequence], device: torch.device) -> bool:
        """Return whether :meth:`launch` needs the latest token of each row on the host, as grammars
        do."""
        self._follow(rows, device)
        return self._needs_tokens

    def launch(
        self,
        logits: Tensor,
        rows: list[Sequence],
        pending: Tensor | None = None,
        mask: GrammarMask | None = None,
    ) -> Launched:
        """Sample rows on the device of ``logits``, without waiting for the device: the tokens that
        :meth:`sample` would choose.

        ``pending`` [rows] holds each row's latest token where only the device knows it. The rows
        are then ``num_in_flight`` 1 ahead of the tokens known on the host.
        """
        assert self.can_launch(rows, logits.device)
        raw = self.scorer.keep(logits) if self._scores else logits
        if logits.dtype != torch.float32:
            logits = self._single.copy(logits)
        for processor in (*self._changes, *self._bans):
            processor.launch(logits, pending)
        highest, token_ids = _choose(logits, mask)
        finite = highest.isfinite()
        if self._draw is not None:
            logits.masked_fill_(~finite[:, None], 0)
            highest.masked_fill_(~finite, 0)
            self._draw.fill(token_ids, logits, highest, waits=False)
        scores = self.scorer.launch_rows(raw, token_ids) if self._scores else PendingScores()
        return Launched(token_ids, finite, scores)

    def _follow(self, sequences: list[Sequence], device: torch.device) -> None:
        """Prepare for the rows of a step, unless they equal the last step's rows."""
        drafting = any(seq.draft is not NO_DRAFT for seq in sequences)
        if sequences == self._rows and not drafting and not self._drafting:
            return
        self._rows, self._drafting = list(sequences), drafting
        rows = lay_rows(sequences)
        self._changes = self._set_rows(CHANGES, self._changes, rows)
        self._bans = self._set_rows(BANS, self._bans, rows)
        processors = (*self._changes, *self._bans)
        self._launchable = all(
            seq.choice.effect is None and seq.record is None for seq in sequences
        ) and all(processor.can_launch() for processor in processors)
        self._needs_tokens = any(seq.choice.grammar is not None for seq in sequences) or any(
            processor.needs_tokens() for processor in processors
        )
        scored = [(i, row) for i, row in enumerate(rows) if row.sequence.logprobs is not None]
        self._scores = bool(scored)
        if scored:
            self.scorer.set_rows(scored, len(rows))
        self._distributions = None
        if drawn := [(i, row) for i, row in scored if _scores_draws(row)]:
            self._distributions = Distributions(drawn, device)
            self._launchable = False
        self._closing = [
            (row, grammar)
            for row, (_, _, grammar) in enumerate(rows)
            if grammar is not None and grammar.closes
        ]
        drawing = [(i, row) for i, row in enumerate(rows) if not row.sequence.sampling.greedy]
        self._draw = Drawing(drawing, len(rows), device) if drawing else None

    def _set_rows(
        self, uses: Rows[Use], before: Rows[LogitsProcessor], rows: Rows[Row]
    ) -> list[LogitsProcessor]:
        """Tell processors their rows. Return those that have any; the ones that had some in the
        step ``before`` forget them."""
        active = []
        for use in uses:
            processor = self._processors[use]
            wanted = [(i, row) for i, row in enumerate(rows) if use.is_wanted(row)]
            if wanted or processor in before:
                processor.set_rows(wanted)
            if wanted:
                active.append(processor)
        return active

    def _review(self, token_ids: Tensor, faults: Mapping[int, Exception]) -> frozenset[int]:
        """Replace tokens after which a choice could not end in time. Return their rows."""
        overruled = set()
        for row, grammar in self._closing:
            if row in faults or not grammar.is_closing:
                continue
            token_id = int(token_ids[row])
            if (other := grammar.review(token_id)) != token_id:
                token_ids[row] = other
                overruled.add(row)
        return frozenset(overruled)

    def _score_drawn(
        self,
        logits: Tensor,
        highest: Tensor,
        token_ids: Tensor,
        sums: Rows[float],
        overruled: frozenset[int],
    ) -> Mapping[int, TokenLogprobs]:
        """Score the rows whose request asks what their tokens were drawn from."""
        if self._distributions is None:
            return {}
        rows = self._distributions.rows
        drawn = self._draw.list_drawn(rows) if self._draw is not None else {}
        for row in overruled.intersection(drawn):
            drawn[row] = drawn[row].keep_only(int(token_ids[row]))
        return self._distributions.score(drawn, logits, highest, token_ids, sums)


_NO_BITS = np.empty((0, 0), dtype=np.int32)


def _choose(logits: Tensor, mask: GrammarMask | None) -> tuple[Tensor, Tensor]:
    """Apply ``mask`` in place. Return each row's highest logit (NaN if the row contains a NaN), and
    the first token that has it."""
    rows, allowed = (mask.rows, mask.allowed) if mask is not None else ([], _NO_BITS)
    if (chosen := native_logits.choose(logits, rows, allowed)) is not None:
        return chosen
    if mask is not None:
        mask.apply(logits)
    return logits.amax(dim=-1), logits.argmax(dim=-1)
