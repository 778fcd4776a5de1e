"""The log probabilities of one sequence's tokens, collected until a delta takes them. No torch."""

from dataclasses import dataclass, field

from completions.contract.job_request import LogprobParams, LogprobsMode
from workers.engine.core.output import ChoiceDelta, TokenLogprobs


class PromptLogprobs:
    """The log probabilities of a prompt's tokens from position ``logprob_start_len`` on.

    The logits at a position score the next token. Those at the last position score the first
    output token, so a prompt is complete once all positions before the last are scored.
    """

    def __init__(self, params: LogprobParams, prompt_len: int) -> None:
        self.start = params.logprob_start_len
        self.rows = TokenLogprobs.unknown(prompt_len - self.start, params)
        self._next = self.start
        self._end = prompt_len - 1

    @property
    def is_complete(self) -> bool:
        return self._next >= self._end

    def due(self, position: int, size: int) -> tuple[int, int]:
        """Return the positions still to score among ``size`` positions of one step: the first, and
        how many."""
        first = max(position, self._next)
        return first, max(0, min(position + size, self._end) - first)

    def note(self, position: int, scores: TokenLogprobs) -> None:
        """Add the scores of the tokens that follow ``position`` and the positions after it."""
        first = position + 1 - self.start
        rows = self.rows.rows(first, first + len(scores.chosen))
        rows.chosen[:], rows.top_ids[:], rows.top[:] = scores.chosen, scores.top_ids, scores.top
        rows.named[:], rows.ranks[:] = scores.named, scores.ranks
        self._next = max(self._next, position + len(scores.chosen))


@dataclass(slots=True, eq=False)
class LogprobRecord:
    """The log probabilities of one sequence."""

    params: LogprobParams
    prompt: PromptLogprobs | None = None
    """The prompt's record, until the first delta takes it."""
    is_returned: bool = True
    """False if the request wants only ``total``, to select the best candidates."""
    total: float = 0.0
    """The sum over all output tokens."""
    _untaken: list[TokenLogprobs] = field(default_factory=list)

    @property
    def prompt_is_due(self) -> bool:
        return self.prompt is not None and not self.prompt.is_complete

    def note(self, raw: TokenLogprobs, drawn: TokenLogprobs | None = None) -> None:
        """Add one row, for the token that was sampled last; ``drawn`` is scored under what it was
        drawn from. Candidates are always compared by their raw scores."""
        scores = raw
        if drawn is not None and self.params.mode is LogprobsMode.PROCESSED:
            scores = drawn
        if drawn is not None and self.params.support_ids is not None:
            scores.support = drawn.support
        else:
            scores.support = []
        self._untaken.append(scores)
        self.total += float(raw.chosen[0])

    def note_offset(self, num_characters: int) -> None:
        """Set how many characters of the text precede the token added last."""
        self._untaken[-1].offsets = [num_characters]

    def note_forced(self, forced: bool) -> None:
        """Set whether the grammar allowed no other token than the one added last."""
        self._untaken[-1].forced = [forced]

    def write(self, delta: ChoiceDelta) -> None:
        """Move the collected scores into the delta; the prompt's scores go into the first delta."""
        if delta.token_ids and self.is_returned:
            delta.logprobs = TokenLogprobs.concatenate(self._untaken)
        self._untaken = []
        if self.prompt is not None:
            delta.prompt_logprobs = self.prompt.rows
            self.prompt = None
