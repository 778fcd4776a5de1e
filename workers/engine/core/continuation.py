"""A given continuation of a prompt, whose tokens are scored and not sampled. No torch."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

from workers.engine.core.choice import GrammarState
from workers.engine.core.output import ChoiceDelta, TokenLogprobs
from workers.engine.text.detokenizer import Detokenizer
from workers.engine.text.finish import FinishReason


@dataclass(slots=True, eq=False)
class Continuation:
    """The text of a continuation, and how far a grammar allows it."""

    token_ids: list[int]
    text: str
    offsets: list[int]
    """Characters of the text before each token."""
    num_allowed: int | None = None
    """How many tokens, from the first on, the grammar allows; None without a grammar."""

    @classmethod
    def read(cls, token_ids: Rows[int], detokenizer: Detokenizer) -> "Continuation":
        text, offsets = "", []
        for token_id in token_ids:
            offsets.append(len(text))
            text += detokenizer.push(token_id)
        return cls(list(token_ids), text + detokenizer.flush(), offsets)

    def follow(self, grammar: GrammarState) -> None:
        """Count the tokens that a grammar allows. Raises GrammarError."""
        self.num_allowed = 0
        for token_id in self.token_ids:
            if not grammar.allows(token_id):
                return
            self.num_allowed += 1
            grammar.consume(token_id)

    def make_delta(self, index: int, scores: TokenLogprobs) -> ChoiceDelta:
        """Make the one delta of its choice. ``scores`` has a row for each token."""
        scores.offsets = self.offsets
        return ChoiceDelta(
            index,
            self.token_ids,
            self.text,
            FinishReason.LENGTH,
            logprobs=scores,
            num_allowed=self.num_allowed,
        )
