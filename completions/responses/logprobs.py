"""Log probabilities in OpenAI's forms: of completions and of chat completions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from completions.responses.choice_record import Scores
from completions.responses.token_texts import TokenTexts

TextOf = Callable[[int], str]


class Row(NamedTuple):
    """The scores of one position."""

    token_id: int
    score: float | None
    """Log probability of the token."""
    offset: int
    """Characters of the choice's text before the token."""
    top: list[tuple[int, float]]
    """The likeliest tokens with their log probabilities."""
    forced: bool | None = None
    """Whether the constraint allowed no other token; None unless the request asks."""


def rows(token_ids: Sequence[int], scores: Scores, offsets: Sequence[int]) -> Iterator[Row]:
    """Scores position by position."""
    best_ids, best, forced = scores.get("top_ids"), scores.get("top"), scores.get("forced")
    for i, token_id in enumerate(token_ids):
        top: list[tuple[int, float]] = []
        if best_ids is not None and best is not None and best_ids[i] is not None:
            top = list(zip(best_ids[i], best[i], strict=True))
        yield Row(token_id, scores["chosen"][i], offsets[i], top, forced[i] if forced else None)


class CompletionLogprobs:
    """`choices[].logprobs` of one choice of a completion, as its tokens and text arrive. A token is
    listed once the text has grown past its offset, or at the end if it has no text. Tokens that a
    stop string cuts off are not listed."""

    def __init__(self, top: int, text_of: TextOf) -> None:
        self._top = top
        self._text_of = text_of
        self._waiting: list[Row] = []

    def push(
        self,
        gained: Sequence[Row],
        text_length: int,
        echoed: Sequence[Row] = (),
        ends: bool = False,
    ) -> dict[str, Any]:
        """Add rows. Returns those that are now within the `text_length` characters of the text, all
        of them if it `ends` without being cut; the rows of an echoed prompt come first."""
        self._waiting += gained
        shown = len(self._waiting) if ends else 0
        while shown < len(self._waiting) and self._waiting[shown].offset < text_length:
            shown += 1
        listed, self._waiting = [*echoed, *self._waiting[:shown]], self._waiting[shown:]
        written = {
            "tokens": [self._text_of(row.token_id) for row in listed],
            "token_logprobs": [row.score for row in listed],
            "top_logprobs": [self._by_text(row) for row in listed],
            "text_offset": [row.offset for row in listed],
        }
        if any(row.forced is not None for row in listed):
            written["forced"] = [row.forced for row in listed]
        return written

    def _by_text(self, row: Row) -> dict[str, float] | None:
        """Scores by text of the likeliest tokens and the token itself; the best for equal texts."""
        if row.score is None:
            return None
        found: dict[str, float] = {}
        for token_id, score in [*row.top[: self._top], (row.token_id, row.score)]:
            text = self._text_of(token_id)
            found[text] = max(score, found.get(text, score))
        return found


def chat_logprobs(
    token_ids: Sequence[int], scores: Scores, top: int, texts: TokenTexts
) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion, with the `top` likeliest tokens per position."""

    def entry(token_id: int, score: float | None) -> dict[str, Any]:
        raw = list(texts.raw(token_id))
        return {"token": texts.text(token_id), "logprob": score, "bytes": raw}

    listed = []
    for row in rows(token_ids, scores, scores["offsets"]):
        written = entry(row.token_id, row.score)
        written["top_logprobs"] = [entry(*best) for best in row.top[:top]]
        if row.forced is not None:
            written["forced"] = row.forced
        listed.append(written)
    return {"content": listed, "refusal": None}
