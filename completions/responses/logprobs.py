"""Log probabilities as events carry them, in OpenAI's form for completions and in SGLang's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Scores = Mapping[str, Any]
"""What `completions.jobs.events` calls `logprobs` or `prompt_logprobs`."""
TextOf = Callable[[int], str]


class Native(NamedTuple):
    """What one prompt's `return_logprob` and its kin ask for."""

    tokens: bool
    """The sampled tokens' own."""
    top: int
    ids: Sequence[int]
    start: int
    """First prompt position, or -1."""


class Row(NamedTuple):
    """One position: the token there, its own score, and the likeliest with theirs."""

    token_id: int
    score: float | None
    offset: int
    top: list[tuple[int, float]]


def rows(token_ids: Sequence[int], scores: Scores, offsets: Sequence[int]) -> Iterator[Row]:
    """Scores position by position."""
    best_ids, best = scores.get("top_ids"), scores.get("top")
    for i, token_id in enumerate(token_ids):
        top: list[tuple[int, float]] = []
        if best_ids is not None and best is not None and best_ids[i] is not None:
            top = list(zip(best_ids[i], best[i], strict=True))
        yield Row(token_id, scores["chosen"][i], offsets[i], top)


class Legacy:
    """`choices[].logprobs` of one choice, as its tokens and their text arrive.

    Only tokens whose text is in the choice's text are listed: one waits until the text has grown
    past its offset, and at the end what waits was trimmed.
    """

    def __init__(self, top: int, text_of: TextOf) -> None:
        self._top = top
        self._text_of = text_of
        self._waiting: list[Row] = []

    def push(self, gained: Sequence[Row], text_length: int) -> dict[str, Any]:
        """Add rows; what is now part of the `text_length` characters, in OpenAI's form."""
        self._waiting += gained
        shown = 0
        while shown < len(self._waiting) and self._waiting[shown].offset < text_length:
            shown += 1
        listed, self._waiting = self._waiting[:shown], self._waiting[shown:]
        return {
            "tokens": [self._text_of(row.token_id) for row in listed],
            "token_logprobs": [row.score for row in listed],
            "top_logprobs": [self._by_text(row) for row in listed],
            "text_offset": [row.offset for row in listed],
        }

    def _by_text(self, row: Row) -> dict[str, float] | None:
        """The likeliest and the token itself. Of tokens with the same text the likelier counts."""
        if row.score is None:
            return None
        found: dict[str, float] = {}
        for token_id, score in [*row.top[: self._top], (row.token_id, row.score)]:
            text = self._text_of(token_id)
            found[text] = max(score, found.get(text, score))
        return found


def native(
    prefix: str, token_ids: Sequence[int], scores: Scores, wish: Native, text_of: TextOf | None
) -> dict[str, Any]:
    """SGLang's arrays for `meta_info`, of the prompt (`input_`) or the output (`output_`).

    Every entry is [log probability, token id, text], the text null without `text_of`.
    """

    def entry(score: float | None, token_id: int) -> list[Any]:
        return [score, token_id, text_of(token_id) if text_of else None]

    def entries(values: Sequence[float] | None, ids: Sequence[int]) -> list[list[Any]] | None:
        return None if values is None else [entry(v, i) for v, i in zip(values, ids, strict=True)]

    arrays: dict[str, Any] = {}
    if wish.tokens:
        chosen = zip(scores["chosen"], token_ids, strict=True)
        arrays[f"{prefix}token_logprobs"] = [entry(score, token_id) for score, token_id in chosen]
    if wish.top:
        best = zip(scores.get("top", ()), scores.get("top_ids", ()), strict=True)
        arrays[f"{prefix}top_logprobs"] = [
            entries(row and row[: wish.top], ids and ids[: wish.top]) for row, ids in best
        ]
    if wish.ids:
        named = scores.get("named", ())
        arrays[f"{prefix}token_ids_logprobs"] = [entries(row, wish.ids) for row in named]
    return arrays
