"""SGLang's extensions: `meta_info` of choices with log probabilities, `sglext` of responses."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from completions.responses import constraint_report, token_texts
from completions.responses.choice_record import ABORT, ChoiceRecord, Choices, Scores


class SGLangLogprobs(NamedTuple):
    """The log probabilities of one prompt that SGLang's fields (`return_logprob` and the like) ask
    for."""

    tokens: bool
    """Whether those of the sampled tokens are wanted."""
    top: int
    """The number of likeliest tokens listed at each position."""
    ids: Sequence[int]
    """The tokens that are scored at each position."""
    start: int
    """The first scored position of the prompt; -1 if the prompt is not scored."""


def meta_info(choices: Choices, record: ChoiceRecord) -> dict[str, Any]:
    """`meta_info` of a choice, in SGLang's form."""
    view = choices.view
    info: dict[str, Any] = {
        "id": view.rid_of(record.index) or view.id,
        "prompt_tokens": view.prompt_lengths[record.index // view.n],
        "completion_tokens": len(record.token_ids),
        "cached_tokens": record.cached_tokens,
        "finish_reason": _finish_object(record),
    }
    if record.matched_stop_text is not None:
        info["matched_stop_text"] = record.matched_stop_text
    if record.constraint is not None:
        info["constraint"] = constraint_report.report(record, record.constraint)
    if record.routed_experts is not None:
        info["routed_experts"] = record.routed_experts
    if view.sglang_logprobs and (asked := view.sglang_logprobs[record.index // view.n]):
        info |= _logprobs(choices, record, SGLangLogprobs(*asked))
    return info


def sglext(choices: Choices) -> dict[str, Any]:
    """`sglext` of a response, from its first choice; empty if the request asks for none of it."""
    view, first = choices.view, choices.records[0]
    found: dict[str, Any] = {}
    if view.routed_experts:
        found["routed_experts"] = first.routed_experts
    if view.cached_tokens_details:
        found["cached_tokens_details"] = {"device": first.cached_tokens}
    return found


def _finish_object(record: ChoiceRecord) -> dict[str, Any]:
    reason = record.finish_reason or ABORT
    if reason == "length":
        return {"type": reason, "length": len(record.token_ids)}
    if reason == "stop":
        return {"type": reason, "matched": record.matched_stop}
    return {"type": reason, "message": "The request was cancelled."}


def _logprobs(choices: Choices, record: ChoiceRecord, asked: SGLangLogprobs) -> dict[str, Any]:
    view = choices.view
    text_of = token_texts.of(view.served_model).text if view.text_in_logprobs else None
    found: dict[str, Any] = {"input_token_logprobs": []} if asked.tokens else {}
    scores = choices.prompt_scores(record.index)
    if asked.start >= 0 and scores is not None and view.prompts is not None:
        ids = view.prompts[record.index // view.n][asked.start :]
        found |= logprob_arrays("input_", ids, _last(scores, len(ids)), asked, text_of)
    found |= logprob_arrays("output_", record.token_ids, record.scores, asked, text_of)
    if asked.tokens:
        found["output_token_logprobs_length"] = len(record.token_ids)
    return found


def _last(scores: Scores, length: int) -> dict[str, Any]:
    """The last `length` rows, because other fields may ask for more of the prompt. SGLang's first
    row is null wherever it begins."""
    cut = {name: list(values)[len(values) - length :] for name, values in scores.items()}
    for values in cut.values():
        values[:1] = [None] * len(values[:1])
    return cut


def logprob_arrays(
    prefix: str,
    token_ids: Sequence[int],
    scores: Scores,
    asked: SGLangLogprobs,
    text_of: Callable[[int], str] | None,
) -> dict[str, Any]:
    """SGLang's arrays for the prompt (prefix `input_`) or the output (`output_`): entries of [log
    probability, token id, text], whose text is null without `text_of`."""

    def entry(score: float | None, token_id: int) -> list[Any]:
        return [score, token_id, text_of(token_id) if text_of else None]

    def entries(values: Sequence[float] | None, ids: Sequence[int]) -> list[list[Any]] | None:
        return None if values is None else [entry(v, i) for v, i in zip(values, ids, strict=True)]

    arrays: dict[str, Any] = {}
    if asked.tokens:
        chosen = zip(scores["chosen"], token_ids, strict=True)
        arrays[f"{prefix}token_logprobs"] = [entry(score, token_id) for score, token_id in chosen]
    if asked.top:
        best = zip(scores.get("top", ()), scores.get("top_ids", ()), strict=True)
        arrays[f"{prefix}top_logprobs"] = [
            entries(row and row[: asked.top], ids and ids[: asked.top]) for row, ids in best
        ]
    if asked.ids:
        named = scores.get("named", ())
        arrays[f"{prefix}token_ids_logprobs"] = [entries(row, asked.ids) for row in named]
    return arrays
