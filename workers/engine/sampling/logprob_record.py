"""The log probabilities of one sequence's tokens, collected step by step until they are told.
No torch."""

from dataclasses import dataclass, field

from workers.engine.request import ChoiceDelta, LogprobParams, TokenLogprobs


class PromptLogprobs:
    """Of a prompt's tokens from position ``logprob_start_len`` on, of which the first has none.

    The logits of a position say how likely the next token was. Those of the last one belong to
    the first output token, so a prompt is scored once the positions before it are.
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
        """Of ``size`` positions that are computed together, those whose logits are still to be
        scored: the first, and how many."""
        first = max(position, self._next)
        return first, max(0, min(position + size, self._end) - first)

    def note(self, position: int, scores: TokenLogprobs) -> None:
        """Of the tokens that follow upon ``position`` and the positions after it."""
        first = position + 1 - self.start
        rows = self.rows.rows(first, first + len(scores.chosen))
        rows.chosen[:], rows.top_ids[:], rows.top[:] = scores.chosen, scores.top_ids, scores.top
        rows.named[:] = scores.named
        self._next = max(self._next, position + len(scores.chosen))


@dataclass(slots=True, eq=False)
class LogprobRecord:
    """``prompt`` is there until it is told. Of the output, what is not told yet is kept, and the
    sum over all tokens, which may be all that is wanted: then nothing ``is_told``."""

    params: LogprobParams
    prompt: PromptLogprobs | None = None
    is_told: bool = True
    total: float = 0.0
    _untold: list[TokenLogprobs] = field(default_factory=list)

    @property
    def prompt_is_due(self) -> bool:
        return self.prompt is not None and not self.prompt.is_complete

    def note(self, scores: TokenLogprobs) -> None:
        """One row, of the token that was sampled last."""
        self._untold.append(scores)
        self.total += float(scores.chosen[0])

    def note_offset(self, num_characters: int) -> None:
        """How many characters of the text stand before that token."""
        self._untold[-1].offsets = [num_characters]

    def write(self, delta: ChoiceDelta) -> None:
        """Tell of the delta's tokens, and of the prompt the first time."""
        if delta.token_ids and self.is_told:
            delta.logprobs = TokenLogprobs.joined(self._untold)
        self._untold = []
        if self.prompt is not None:
            delta.prompt_logprobs = self.prompt.rows
            self.prompt = None
