"""``best_of``: more candidates run than choices are returned."""

from collections.abc import Iterable

from workers.engine.core.output import ChoiceDelta
from workers.engine.core.request import Request
from workers.engine.core.sequence import Sequence


class BestOf:
    """Selects each prompt's choices among its candidates, as OpenAI's API defines ``best_of``.

    Once all candidates of a prompt have ended, the ``n`` with the highest mean log probability per
    token become its choices, the best first; among equals, the earlier one. A prompt whose choices
    an earlier run published returns nothing.
    """

    def __init__(self, request: Request) -> None:
        self._n = request.sampling.n
        self._published = {index // self._n for index in request.published}
        self._candidates: list[dict[Sequence, ChoiceDelta]] = [{} for _ in request.prompts]
        self._unfinished = [request.sampling.num_candidates] * len(request.prompts)

    def choose(self, gained: Iterable[tuple[Sequence, ChoiceDelta]]) -> list[ChoiceDelta]:
        """Add what candidates gained. Return the choices of prompts that are now complete."""
        complete = []
        for seq, delta in gained:
            whole = self._candidates[seq.origin.prompt_index].setdefault(seq, ChoiceDelta(0))
            whole.add(delta)
            if delta.finish_reason is not None:
                self._unfinished[seq.origin.prompt_index] -= 1
                if not self._unfinished[seq.origin.prompt_index]:
                    complete.append(seq.origin.prompt_index)
        return [choice for prompt in complete for choice in self._best(prompt)]

    def _best(self, prompt: int) -> list[ChoiceDelta]:
        candidates, self._candidates[prompt] = self._candidates[prompt], {}
        if prompt in self._published:
            return []
        in_order = sorted(candidates, key=lambda seq: seq.origin.choice_index)
        best = sorted(in_order, key=_mean_logprob, reverse=True)[: self._n]
        scored = candidates[in_order[0]].prompt_logprobs
        for rank, seq in enumerate(best):
            choice = candidates[seq]
            choice.index = prompt * self._n + rank
            choice.prompt_logprobs = None if rank else scored
        return [candidates[seq] for seq in best]


def _mean_logprob(sequence: Sequence) -> float:
    assert sequence.logprobs is not None
    return sequence.logprobs.total / max(1, sequence.num_output_tokens)
