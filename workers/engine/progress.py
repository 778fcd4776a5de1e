"""Appends tokens to sequences: the ones that a step samples and the ones that grammars force."""

from workers.engine.core.output import ConstraintEffect
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import Row, lay_rows
from workers.engine.exceptions import InvalidLogits
from workers.engine.grammar.effect import Removal
from workers.engine.grammar.jump_rate import JumpRate
from workers.engine.launched_steps import Flight
from workers.engine.live_requests import LiveRequests, RequestState
from workers.engine.sampling.sampler import SamplerOutput
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.speculation.speculation import Speculation


class Progress:
    """Appends tokens to sequences, from the start of a request to the end of its choices.

    A fault of one request ends that request, never the others of its step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        live: LiveRequests,
        speculation: Speculation | None,
        jump_rate: JumpRate,
    ) -> None:
        self._scheduler = scheduler
        self._live = live
        self._speculation = speculation
        self._jump_rate = jump_rate
        self.generated_tokens = 0
        self.forced_tokens = 0

    def begin(self, state: RequestState) -> None:
        """Schedule a request's sequences. First replay the tokens that an earlier run published,
        and append the tokens that grammars force."""
        if state.is_released:  # while its grammar was compiled
            return
        try:
            for seq in state.sequences:
                seq.choice.replay(seq.token_ids[seq.prompt_len :])
                if self._jump_forward(seq) and seq.choice.finish is None:
                    self._live.touch(seq)
        except Exception as error:  # noqa: BLE001 - see the class
            self._live.blame(state, error)
            return
        first = state.sequences[0]
        for seq in state.sequences:
            if seq.origin.prompt_index != first.origin.prompt_index:
                first = seq
            if seq is not first and first.logprobs is not None and first.logprobs.prompt_is_due:
                first.held.append(seq)
            else:
                self._place(seq)

    def record(self, flight: Flight, sampled: SamplerOutput) -> None:
        """Record what a step computed, and append its tokens.

        Rows after a rejected draft token are ignored.
        """
        rows = lay_rows(flight.batch.all_sampled)
        invalid = [rows[row] for row in sampled.invalid]
        self._scheduler.advance(
            flight.scheduled, [row.sequence for row in invalid if not row.num_drafted]
        )
        spoilt = {row.sequence for row in invalid if row.num_drafted}
        self._scheduler.taint_drafts(spoilt)
        self._append(rows, sampled, flight)
        if self._speculation is not None:
            self._speculation.settle(flight.batch.all_sampled, spoilt)

    def _append(self, rows: list[Row], sampled: SamplerOutput, flight: Flight) -> None:
        """Append each row's token, or end its request with the row's error."""
        mask = flight.mask
        invalid = {row: InvalidLogits() for row in sampled.invalid}
        masked = mask.faults if mask is not None else {}
        faults = {**invalid, **sampled.faults, **masked, **flight.batch.faults}
        num_jumped = 0
        for row, token_id in enumerate(sampled.token_ids):
            seq, num_drafted, _ = rows[row]
            if seq.finished:
                continue  # an earlier row ended its request
            if num_drafted and (row in faults or not seq.follows_draft(num_drafted)):
                continue  # after a rejected token; a fault recurs if the token is reached
            if row in faults:
                self._live.blame(self._live.owner(seq), faults[row])
                continue
            if not num_drafted and len(seq.token_ids) > seq.num_computed:
                continue  # the step was launched ahead of tokens that the grammar then forced
            num_jumped += self._append_one(row, seq, token_id, sampled) > 0
        if mask is not None:
            self._jump_rate.note(num_jumped, len(rows))

    def _append_one(self, row: int, seq: Sequence, token_id: int, sampled: SamplerOutput) -> int:
        """Append a row's token, then those that the grammar forces. Return how many it forces."""
        choice = seq.choice
        try:
            if choice.finish is not None:
                seq.restore_end()
                num_jumped = 0
            else:
                if choice.grammar is not None and row in sampled.overruled:
                    choice.grammar.force(token_id)
                if seq.logprobs is not None:
                    seq.logprobs.note(sampled.scores[row], sampled.drawn.get(row))
                if choice.effect is not None:
                    _note_effect(choice.effect, seq, sampled.removals.get(row))
                self._extend(seq, token_id)
                num_jumped = 0 if choice.grammar is None else self._jump_forward(seq)
        except Exception as error:  # noqa: BLE001 - see the class
            self._live.blame(self._live.owner(seq), error)
            return 0
        self._live.touch(seq)
        if seq.held:
            for sibling in seq.held:
                self._place(sibling)
            seq.held = []
        if choice.finish is not None:
            self._live.finish(seq)
            if self._speculation is not None:
                self._speculation.remember(seq)
        return num_jumped

    def _jump_forward(self, seq: Sequence) -> int:
        """Append the tokens that the grammar forces next. The step that samples the token after
        them computes them too. Return how many there are."""
        num_tokens = 0
        while not seq.rules.every_position and (token_id := seq.choice.forced_token) is not None:
            self._extend(seq, token_id)
            num_tokens += 1
        return num_tokens

    def _extend(self, seq: Sequence, token_id: int) -> None:
        """Append a token, and count it."""
        self.generated_tokens += 1
        num_forced = seq.choice.num_forced
        seq.append(token_id)
        self.forced_tokens += seq.choice.num_forced - num_forced

    def _place(self, seq: Sequence) -> None:
        """Schedule a sequence, or end it if it has nothing to compute."""
        if seq.choice.finish is None or seq.withhold_end():
            self._scheduler.add(seq)
        else:
            self._live.touch(seq)
            self._live.finish(seq)


def _note_effect(effect: ConstraintEffect, seq: Sequence, removal: Removal | None) -> None:
    """Record the grammar's effect on a sequence's next token."""
    forced = seq.choice.forced_token is not None
    if seq.logprobs is not None:
        seq.logprobs.note_forced(forced)
    if removal is None:
        return
    if forced:
        effect.add_forced(removal[1])
    else:
        effect.add_step(*removal)
