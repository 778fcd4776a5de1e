"""How many tokens of prompts a step computes, so that nobody who reads along waits long for the
next token. No torch, no clock."""

import math
from collections.abc import Iterable

from workers.engine.core.request import Audience
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import SchedulerOutput
from workers.engine.scheduling.step_times import StepTimes, StepWork, measure_work

LEAST_CHUNK = 16
"""The rows of the smallest part of a prompt, and what larger parts are multiples of: the rows of a
tile, and of a block of the KV cache. One such part fits into every step, so prompts advance however
slow the steps are."""

_PATIENCE = {Audience.TOKENS: 1.0, Audience.ANSWER: 4.0, Audience.NOBODY: math.inf}
"""How many step limits a running sequence may wait for its next token. A client that
waits for a whole answer sees no gap, but also waits for the prompts of others; larger chunks are
hardly cheaper."""

_LEAST_STRETCH = 3.0
"""A step may always take this many times as long as without prompts. A larger model, or many long
sequences, could not keep to the limit anyway, and would hardly compute prompts."""


class StepRoom:
    """What one step may still compute: tokens, and seconds where somebody waits for them."""

    def __init__(self, num_tokens: int, limit: float, work: StepWork, times: StepTimes) -> None:
        """``limit`` is in seconds and includes ``work``, which the step computes in any case."""
        self._num_tokens = num_tokens
        self._limit = limit
        self._work = work
        self._times = times
        self._has_chunk = False

    @property
    def is_full(self) -> bool:
        return self._num_tokens <= 0 or (self._has_chunk and not self._has_time(0, LEAST_CHUNK))

    def take(self, sequence: Sequence) -> int:
        """Return how many of its tokens a sequence computes in this step, which may be none."""
        first, missing = sequence.num_computed, sequence.num_uncomputed
        size = max(0, min(missing, self._num_tokens))
        # Tokens that a grammar forced are part of an output that somebody may read.
        if sequence.is_starting and not self._has_time(first, size):
            size = self._fit(first, size)
        if size:
            self._has_chunk = self._has_chunk or sequence.is_starting
            self._work = self._work.add(first, size)
            self._num_tokens -= size
        return size

    def place(self, sequence: Sequence, output: SchedulerOutput) -> bool:
        """Have a step compute as many of a sequence's tokens as it has room for. Return whether it
        has room for any."""
        if size := self.take(sequence):
            output.add(sequence, size)
        return size > 0

    def _fit(self, first: int, most: int) -> int:
        """Return the largest multiple of the least chunk, up to ``most`` tokens from ``first`` on,
        that the step has time for. Its first chunk is never empty."""
        least = min(most, LEAST_CHUNK)
        low, high = 0, most // LEAST_CHUNK
        while low < high:
            middle = (low + high + 1) // 2
            if self._has_time(first, middle * LEAST_CHUNK):
                low = middle
            else:
                high = middle - 1
        return low * LEAST_CHUNK or (0 if self._has_chunk else least)

    def _has_time(self, first: int, size: int) -> bool:
        if self._limit == math.inf or not size:
            return True
        if not self._times.is_known:
            return size <= LEAST_CHUNK
        return self._times.bound(self._work.add(first, size)) <= self._limit


class ChunkSizes:
    """Decides how long a step may take, given who waits for the tokens of its sequences."""

    def __init__(self, step_seconds: float = math.inf) -> None:
        """``step_seconds`` is the limit of a step while somebody reads tokens as they come."""
        self._step_seconds = step_seconds
        self.times = StepTimes()

    def open(
        self, running: Iterable[Sequence], chunks: list[tuple[Sequence, int]], num_tokens: int
    ) -> StepRoom:
        """Return the room of a step that computes ``chunks`` and up to ``num_tokens`` more."""
        limit = math.inf
        if self._step_seconds < math.inf:
            # As is_starting, without its call: a step has many sequences.
            audiences = {
                s.origin.audience for s in running if s.num_computed >= s.turn.num_at_start
            }
            limit = self._step_seconds * min((_PATIENCE[a] for a in audiences), default=math.inf)
        work = measure_work(chunks)
        if limit < math.inf:
            limit = max(limit, _LEAST_STRETCH * self.times.expect(work))
        return StepRoom(num_tokens, limit, work, self.times)
