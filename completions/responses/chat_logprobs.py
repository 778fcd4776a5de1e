"""Log probabilities in the form of chat completions."""

from collections.abc import Sequence
from typing import Any

from completions.responses.logprobs import Scores, rows
from completions.responses.token_texts import TokenTexts


def chat_logprobs(
    token_ids: Sequence[int], scores: Scores, top: int, texts: TokenTexts
) -> dict[str, Any]:
    """Of every sampled token, with the `top` likeliest in its place."""

    def entry(token_id: int, score: float | None) -> dict[str, Any]:
        raw = list(texts.raw(token_id))
        return {"token": texts.text(token_id), "logprob": score, "bytes": raw}

    listed = [
        entry(row.token_id, row.score) | {"top_logprobs": [entry(*best) for best in row.top[:top]]}
        for row in rows(token_ids, scores, scores["offsets"])
    ]
    return {"content": listed, "refusal": None}
