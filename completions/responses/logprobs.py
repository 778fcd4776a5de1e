"""Log probabilities in OpenAI's forms: of completions and of chat completions."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from completions.jobs.events import TokenScores
from completions.responses.token_texts import TokenTexts

TextOf = Callable[[int], str]


class TokenScore(NamedTuple):
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


def iter_scores(
    token_ids: Sequence[int], scores: TokenScores, offsets: Sequence[int]
) -> Iterator[TokenScore]:
    """Yield scores position by position."""
    best_ids, best, forced = scores.get("top_ids"), scores.get("top"), scores.get("forced")
    for i, token_id in enumerate(token_ids):
        top: list[tuple[int, float]] = []
        if best_ids is not None and best is not None:
            top = list(zip(best_ids[i] or (), best[i] or (), strict=True))
        yield TokenScore(
            token_id, scores["chosen"][i], offsets[i], top, forced[i] if forced else None
        )


class CompletionLogprobs:
    """`choices[].logprobs` of one choice of a completion, as its tokens and text arrive. A token is
    listed once the text has grown past its offset, or at the end if it has no text. Tokens that a
    stop string cuts off are not listed."""

    def __init__(self, top: int, text_of: TextOf) -> None:
        self._top = top
        self._text_of = text_of
        self._waiting: list[TokenScore] = []

    def push(
        self,
        new_scores: Sequence[TokenScore],
        text_length: int,
        echoed: Sequence[TokenScore] = (),
        ends: bool = False,
    ) -> dict[str, object]:
        """Add rows. Returns those that are now within the `text_length` characters of the text, all
        of them if it `ends` without being cut; the rows of an echoed prompt come first."""
        self._waiting += new_scores
        num_released = len(self._waiting) if ends else 0
        while (
            num_released < len(self._waiting) and self._waiting[num_released].offset < text_length
        ):
            num_released += 1
        released, self._waiting = (
            [*echoed, *self._waiting[:num_released]],
            self._waiting[num_released:],
        )
        result = {
            "tokens": [self._text_of(row.token_id) for row in released],
            "token_logprobs": [row.score for row in released],
            "top_logprobs": [self._group_by_text(row) for row in released],
            "text_offset": [row.offset for row in released],
        }
        if any(row.forced is not None for row in released):
            result["forced"] = [row.forced for row in released]
        return result

    def _group_by_text(self, row: TokenScore) -> dict[str, float] | None:
        """Return scores by text of the likeliest tokens and the token itself; the best for equal
        texts."""
        if row.score is None:
            return None
        by_text: dict[str, float] = {}
        for token_id, score in [*row.top[: self._top], (row.token_id, row.score)]:
            text = self._text_of(token_id)
            by_text[text] = max(score, by_text.get(text, score))
        return by_text


def make_support(scores: TokenScores) -> dict[str, object]:
    """Make `sampling_support`: numbers by token, and the ids of all tokens one after another, as
    little-endian int32 in base64. A token has `counts` of them, or as many as the request asks for
    if that is less."""
    ids = (token_id for row in scores.get("support_ids", ()) for token_id in row)
    return {
        "counts": scores.get("counts", []),
        "log_mass": scores.get("log_mass", []),
        "ids": b64encode(b"".join(each.to_bytes(4, "little") for each in ids)).decode(),
    }


def make_prompt_logprobs(
    token_ids: Sequence[int], scores: TokenScores, top: int, texts: TokenTexts
) -> list[dict[str, dict[str, object]] | None]:
    """Make vLLM's `prompt_logprobs`: by position the token itself and the `top` likeliest ones, by
    id. The first position has none."""
    ranks = scores["ranks"]
    rows: list[dict[str, dict[str, object]] | None] = []
    for place, row in enumerate(iter_scores(token_ids, scores, [0] * len(token_ids))):
        if row.score is None:
            rows.append(None)
            continue
        ranked = [(row.token_id, row.score, ranks[place])]
        ranked += [(*best, rank) for rank, best in enumerate(row.top[:top], 1)]
        rows.append(
            {
                str(token_id): {
                    "logprob": score,
                    "rank": rank,
                    "decoded_token": texts.get_text(token_id),
                }
                for token_id, score, rank in ranked
            }
        )
    return rows


def make_chat_logprobs(
    token_ids: Sequence[int], scores: TokenScores, top: int, texts: TokenTexts
) -> dict[str, object]:
    """Make `choices[].logprobs` of a chat completion, with the `top` likeliest tokens per
    position."""

    def make_entry(token_id: int, score: float | None) -> dict[str, object]:
        raw = list(texts.get_bytes(token_id))
        return {"token": texts.get_text(token_id), "logprob": score, "bytes": raw}

    entries = []
    for row in iter_scores(token_ids, scores, scores["offsets"]):
        item = make_entry(row.token_id, row.score)
        item["top_logprobs"] = [make_entry(*best) for best in row.top[:top]]
        if row.forced is not None:
            item["forced"] = row.forced
        entries.append(item)
    return {"content": entries, "refusal": None}
