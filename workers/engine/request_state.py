"""One live request: its sequences, what they gained in this step, and its final usage."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from completions.contract.job_request import Task
from completions.contract.usage import Usage
from workers.engine.best_of import BestOf
from workers.engine.core.choice import GrammarState
from workers.engine.core.output import ChoiceDelta, RequestOutput
from workers.engine.core.request import Request
from workers.engine.core.sequence import Sequence
from workers.engine.exceptions import EngineError


@dataclass(slots=True, eq=False)
class RequestState:
    """Collects what a request's sequences gain until the engine takes it as an output."""

    request: Request
    sequences: list[Sequence]
    changed: dict[Sequence, None] = field(default_factory=dict)
    """Sequences that gained something since the last output."""
    error: EngineError | None = None
    num_unfinished: int = 0
    _begun: set[Sequence] = field(default_factory=set)
    _best_of: BestOf | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.num_unfinished = len(self.sequences)
        if self.request.sampling.num_candidates > self.request.sampling.n:
            self._best_of = BestOf(self.request)

    @property
    def has_ended(self) -> bool:
        return self.error is not None or self.num_unfinished == 0

    @property
    def has_started(self) -> bool:
        """Whether any of its tokens was computed."""
        return any(seq.num_computed or seq.num_output_tokens for seq in self.sequences)

    @property
    def is_released(self) -> bool:
        """Whether it holds no slot and no block: it ended or was aborted."""
        return all(seq.finished for seq in self.sequences)

    def follow(self, grammars: Iterable[GrammarState]) -> None:
        """Count the tokens of each continuation that its grammar allows. Raises GrammarError."""
        for seq, grammar in zip(self.sequences, grammars, strict=True):
            if self.is_released:
                return
            if seq.continuation is not None:
                seq.continuation.follow(grammar)

    def take_output(self) -> RequestOutput:
        """Return what is new since the last call, and the usage once the request has ended."""
        changed, self.changed = self.changed, {}
        request = self.request
        match request.task:
            case Task.GENERATE:
                deltas = self._take_choices(changed)
            case Task.SCORE:
                deltas = self._take_scores(changed)
            case _ as unreachable:
                assert_never(unreachable)
        if not self.has_ended:
            return RequestOutput(request.request_id, deltas)
        return RequestOutput(request.request_id, deltas, True, self.error, self.usage())

    def _take_choices(self, changed: Iterable[Sequence]) -> list[ChoiceDelta]:
        """Return what choices gained, without those whose end an earlier run delivered."""
        if self._best_of is None:
            deltas = [delta for seq in changed if (delta := self._take_delta(seq)) is not None]
        else:
            gained = [(seq, delta) for seq in changed if (delta := self._take_delta(seq))]
            deltas = self._best_of.choose(gained)
        if delivered := self.request.published_ends:
            deltas = [delta for delta in deltas if delta.index not in delivered]
        return deltas

    def _take_scores(self, changed: Iterable[Sequence]) -> list[ChoiceDelta]:
        """The choices of continuations that are scored, without those that an earlier run
        delivered."""
        deltas = []
        for seq in changed:
            assert seq.logprobs is not None
            record, continuation = seq.logprobs.prompt, seq.continuation
            delivered = seq.choice.index in self.request.published_ends
            if delivered or record is None or continuation is None or not record.is_complete:
                continue
            rows = record.rows.rows(1, 1 + len(continuation.token_ids))
            deltas.append(continuation.make_delta(seq.choice.index, rows))
            deltas[-1].cached_tokens, seq.logprobs.prompt = seq.cached_tokens, None
        return deltas

    def _take_delta(self, seq: Sequence) -> ChoiceDelta | None:
        """Return what a sequence gained, with what was recorded for it."""
        delta = seq.choice.take_delta()
        if delta is None:
            return None
        if seq not in self._begun:
            self._begun.add(seq)
            delta.cached_tokens = seq.cached_tokens
        if seq.logprobs is not None:
            seq.logprobs.write(delta)
        if delta.finish_reason is not None and seq.record is not None:
            seq.record.write(delta, seq.num_tokens)
        return delta

    def usage(self) -> Usage:
        """Return the tokens that it has used so far: of its prompts, those that a step has begun to
        compute."""
        # A token is appended before it is counted as forced. Read in this order, even by another
        # thread, the forced tokens never exceed the completion tokens.
        forced = sum(seq.choice.num_forced for seq in self.sequences)
        return Usage(
            prompt_tokens=self._prompt_tokens(),
            cached_tokens=sum(
                seq.cached_tokens for seq in self.sequences if not seq.origin.choice_index
            ),
            completion_tokens=sum(seq.num_output_tokens for seq in self.sequences),
            forced_tokens=forced,
        )

    def _prompt_tokens(self) -> int:
        if self.error is None and not self.num_unfinished:
            return self.request.prompt_tokens
        used = [0] * len(self.request.prompts)
        for seq in self.sequences:
            used[seq.origin.prompt_index] = max(used[seq.origin.prompt_index], seq.num_prompt_used)
        return sum(used)
