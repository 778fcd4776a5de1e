"""Launched steps, whose tokens may still be on their way from the device."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from workers.engine.backends.base.recorder import Recorder
from workers.engine.core.model_input import ModelInput
from workers.engine.core.runner import Runner
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import SchedulerOutput
from workers.engine.grammar.jump_rate import JumpRate
from workers.engine.grammar.mask import GrammarMask
from workers.engine.grammar.structured_output import StructuredOutput
from workers.engine.sampling.logprobs import PendingScores
from workers.engine.sampling.sampler import Launched, Sampler, SamplerOutput
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.speculation.speculation import Speculation

logger = logging.getLogger(__name__)

_INVALID = -1
Lap = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Tokens that the device chooses: ``token_ids`` [rows], on the device and in copy to the host.

    A copied token is -1 if the logits of its row were not finite.
    """

    token_ids: Tensor
    _arriving: Tensor
    _scores: PendingScores
    _arrival: torch.cuda.Event | None

    @classmethod
    def send(cls, launched: Launched) -> Self:
        """Begin to copy tokens from the device, without waiting for it."""
        token_ids, finite, scores = launched
        arriving = torch.where(finite, token_ids, _INVALID).to("cpu", non_blocking=True)
        arrival = None
        if token_ids.device.type == "cuda":
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record(torch.cuda.current_stream(token_ids.device))
        return cls(token_ids, arriving, scores, arrival)

    def wait(self) -> SamplerOutput:
        if self._arrival is not None:
            self._arrival.synchronize()
        token_ids = self._arriving.tolist()
        invalid = [row for row, token_id in enumerate(token_ids) if token_id == _INVALID]
        return SamplerOutput(token_ids, invalid, {}, self._scores.wait())


@dataclass(frozen=True, slots=True)
class Unchosen:
    """The logits of a step that was launched ahead of tokens which its sampling needs on the host.
    :meth:`Launcher.choose` samples them once those tokens have arrived."""

    logits: Tensor


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step. Its tokens are pending only if the next step may start before it ends."""

    scheduled: SchedulerOutput
    batch: ModelInput
    mask: GrammarMask | None
    tokens: SamplerOutput | PendingTokens | Unchosen

    def land(self) -> SamplerOutput:
        """Return the tokens, after waiting for pending ones."""
        tokens = self.tokens
        assert not isinstance(tokens, Unchosen), "Launcher.choose comes first"
        return tokens.wait() if isinstance(tokens, PendingTokens) else tokens


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches what the scheduler decides: drafts, masks, the forward pass and sampling.

    ``lap`` of its methods ends a phase of :attr:`EngineStats.step_seconds`.
    """

    scheduler: Scheduler
    runner: Runner
    recorder: Recorder
    structured_output: StructuredOutput
    sampler: Sampler
    speculation: Speculation | None
    jump_rate: JumpRate

    def launch(self, lap: Lap) -> Flight | None:
        """Launch the next step. Return None if there is nothing to compute, or if it did not fit
        into memory; the next call then launches a smaller one.

        Grammar masks depend on tokens only, so they can be filled while the model runs.
        """
        scheduled = self.scheduler.schedule()
        if not scheduled.chunks:
            return None
        if self.speculation is not None:
            self.speculation.extend(scheduled)
        batch = self.runner.prepare(scheduled)
        rows = batch.all_sampled
        began = time.perf_counter()
        is_constrained = any(seq.choice.grammar is not None for seq in rows)
        filling = self.structured_output.start_mask(rows) if is_constrained else None
        filled = time.perf_counter()
        lap("schedule")
        try:
            with self.recorder.watching(batch) if batch.is_recorded else nullcontext():
                logits = self.runner.forward(batch)
        except torch.OutOfMemoryError as error:
            if filling is not None:
                filling.result()  # its memory is used again
            self._shrink(error)
            return None
        lap("forward")
        computed = time.perf_counter()
        mask = filling.result() if filling is not None else None
        lap("mask")
        if scored := batch.all_scored:
            self.sampler.scorer.score_prompts(scored, logits[len(rows) :])
        tokens = self._sample(logits[: len(rows)], rows, mask)
        if self.speculation is not None and rows:
            rest = filled - began + time.perf_counter() - computed
            self.speculation.costs.note_rest(len(rows), rest)
        return Flight(scheduled, batch, mask, tokens)

    def _shrink(self, error: torch.OutOfMemoryError) -> None:
        """Make later steps smaller, after one that did not fit into memory. They repeat its work.

        Raises ``error`` if they cannot be smaller, or if the runner cannot repeat a step.
        """
        budget = self.scheduler.halve_budget() if self.runner.repeats_steps else None
        if budget is None:
            raise error
        logger.warning(
            "a step did not fit into memory: later ones have %d tokens: %s", budget, error
        )

    def _sample(
        self, logits: Tensor, rows: list[Sequence], mask: GrammarMask | None
    ) -> SamplerOutput | PendingTokens:
        if self.runner.looks_ahead and self.sampler.can_launch(rows, logits.device):
            return PendingTokens.send(self.sampler.launch(logits, rows, mask=mask))
        return self.sampler.sample(logits, rows, mask)

    def launch_ahead(self, flight: Flight, lap: Lap) -> Flight | None:
        """Launch the step after ``flight`` if its forward pass needs nothing but the tokens on the
        device. :meth:`choose` completes it."""
        rows, tokens = flight.batch.all_sampled, flight.tokens
        if not rows or not isinstance(tokens, PendingTokens):
            return None
        if flight.mask is not None and not self.jump_rate.is_low:
            return None
        if (scheduled := self.scheduler.look_ahead(flight.scheduled, rows)) is None:
            return None
        batch = self.runner.prepare(scheduled, tokens.token_ids)
        lap("schedule")
        try:
            logits = self.runner.forward(batch)
        except torch.OutOfMemoryError:
            if not self.runner.repeats_steps:
                raise
            return None  # once the tokens are known, :meth:`launch` repeats the step
        lap("forward")
        if self.sampler.needs_tokens(rows, logits.device):
            return Flight(scheduled, batch, None, Unchosen(logits))
        for seq in rows:
            seq.num_in_flight = 1
        pending = PendingTokens.send(self.sampler.launch(logits, rows, tokens.token_ids))
        for seq in rows:
            seq.num_in_flight = 0
        return Flight(scheduled, batch, None, pending)

    def choose(self, flight: Flight, lap: Lap) -> Flight:
        """Choose the tokens of a step launched ahead, now that the host knows those before them.

        Rows that ended meanwhile, or gained forced tokens, get no mask: their tokens do not count.
        """
        if not isinstance(flight.tokens, Unchosen):
            return flight
        rows = flight.batch.all_sampled
        filling = self.structured_output.start_mask(rows, only_if=_is_next)
        mask = filling.result() if filling is not None else None
        lap("mask")
        return replace(flight, mask=mask, tokens=self._sample(flight.tokens.logits, rows, mask))


def _is_next(seq: Sequence) -> bool:
    """Return whether the step in flight computes the last token of a live sequence."""
    return not seq.finished and seq.num_uncomputed == 1
