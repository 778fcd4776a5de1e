"""SGLang's `meta_info` of a choice, with its log probabilities."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from completions.jobs.events import TokenScores
from completions.responses import constraint_report, token_texts
from completions.responses.choice_record import ABORT, ChoiceRecord, Choices
from completions.responses.response_context import SGLangLogprobs

_SHOWN = ("chosen", "top_ids", "top", "named")
"""Arrays of scores that `meta_info` shows."""


def make_meta_info(
    choices: Choices, record: ChoiceRecord, arrays: "LogprobArrays | None" = None
) -> dict[str, object]:
    """Return what SGLang says about a choice. `arrays` are those of an earlier call for the same
    choice."""
    context = choices.context
    info: dict[str, object] = {
        "id": context.get_rid(record.index) or context.id,
        "prompt_tokens": context.prompt_lengths[record.index // context.n],
        "completion_tokens": len(record.token_ids),
        "cached_tokens": record.cached_tokens,
        "finish_reason": _make_finish(record),
        "weight_version": context.weight_version,
        "engine": record.engine,
    }
    if record.matched_stop_text is not None:
        info["matched_stop_text"] = record.matched_stop_text
    if report := constraint_report.make_report(record, context.closes):
        info["constraint"] = report
    if record.routed_experts is not None:
        info["routed_experts"] = record.routed_experts
    return info | (arrays or LogprobArrays(choices, record)).make()


def _make_finish(record: ChoiceRecord) -> dict[str, object]:
    reason = record.finish_reason or ABORT
    if reason == "length":
        return {"type": reason, "length": len(record.token_ids)}
    if reason == "stop":
        return {"type": reason, "matched": record.matched_stop}
    return {"type": reason, "message": "The request was cancelled."}


class LogprobArrays:
    """SGLang's arrays of a choice. A stream that shows them in each chunk makes each entry once."""

    def __init__(self, choices: Choices, record: ChoiceRecord) -> None:
        context = choices.context
        asked = context.sglang_logprobs
        self._settings = asked[record.index // context.n] if asked else None
        self._choices, self._record = choices, record
        self._given: Arrays | None = None
        self._sampled: Arrays = {}
        self._length = 0
        """Sampled tokens whose entries are made."""

    def count_values(self) -> int:
        """Count the log probabilities that :meth:`make` returned last."""
        rows = [row for each in (self._given or {}, self._sampled) for row in each.values()]
        ids = 1 if self._settings is None else max(1, self._settings.top, len(self._settings.ids))
        return ids * sum(map(len, rows))

    def make(self) -> dict[str, object]:
        """Return the arrays of all tokens so far. Later calls append to those of the sampled
        tokens."""
        settings, record = self._settings, self._record
        if not settings:
            return {}
        if self._given is None:
            self._given = self._make_given(settings)
        new = slice(self._length, len(record.token_ids))
        scores = _slice(record.scores, new)
        added = self._make_arrays("output_", record.token_ids[new], scores, settings)
        for name, entries in added.items():
            self._sampled.setdefault(name, []).extend(entries)
        self._length = new.stop
        arrays: dict[str, object] = {"input_token_logprobs": []} if settings.tokens else {}
        arrays |= (self._given or {}) | self._sampled
        if settings.tokens:
            arrays["output_token_logprobs_length"] = self._length
        return arrays

    def _make_given(self, settings: SGLangLogprobs) -> "Arrays | None":
        """Return the arrays of the prompt; None while they are not computed, or not wanted."""
        context, index = self._choices.context, self._record.index
        scores = self._choices.get_prompt_scores(index)
        prompt = context.get_prompt(index)
        if settings.start < 0 or scores is None or prompt is None:
            return None
        ids = prompt[settings.start :]
        return self._make_arrays("input_", ids, _cut_last(scores, len(ids)), settings)

    def _make_arrays(
        self, prefix: str, token_ids: Sequence[int], scores: TokenScores, settings: SGLangLogprobs
    ) -> "Arrays":
        context, text_of = self._choices.context, None
        if context.text_in_logprobs:
            text_of = token_texts.load_token_texts(context.served_model).get_text
        return make_logprob_arrays(prefix, token_ids, scores, settings, text_of)


Arrays = dict[str, list[object]]
"""Log probabilities by the names of `meta_info`."""


def _cut_last(scores: TokenScores, length: int) -> TokenScores:
    """Return the last `length` rows, because other fields may ask for more of the prompt. SGLang's
    first row is null wherever it begins."""
    cut = _slice(scores, slice(len(scores["chosen"]) - length, None))
    cut["chosen"][:1] = [None] * len(cut["chosen"][:1])
    for name in ("top_ids", "top", "named"):
        if name in cut:
            cut[name][:1] = [None] * len(cut[name][:1])
    return cut


def _slice(scores: TokenScores, rows: slice) -> TokenScores:
    """Return copies of the arrays that `meta_info` shows."""
    arrays = cast("dict[str, list[Any]]", scores)
    shown = {name: arrays[name][rows] for name in _SHOWN if name in arrays}
    return cast("TokenScores", shown)


def make_logprob_arrays(
    prefix: str,
    token_ids: Sequence[int],
    scores: TokenScores,
    settings: SGLangLogprobs,
    text_of: Callable[[int], str] | None,
) -> Arrays:
    """Make SGLang's arrays for the prompt (prefix `input_`) or the output (`output_`): entries of
    [log probability, token id, text], whose text is null without `text_of`."""

    def make_entry(score: float | None, token_id: int) -> list[object]:
        return [score, token_id, text_of(token_id) if text_of else None]

    def make_entries(
        values: Sequence[float | None] | None, ids: Sequence[int] | None
    ) -> list[list[object]] | None:
        return (
            None
            if values is None or ids is None
            else [make_entry(v, i) for v, i in zip(values, ids, strict=True)]
        )

    arrays: Arrays = {}
    if settings.tokens:
        chosen = zip(scores.get("chosen", ()), token_ids, strict=True)
        arrays[f"{prefix}token_logprobs"] = [
            make_entry(score, token_id) for score, token_id in chosen
        ]
    if settings.top:
        best = zip(scores.get("top", ()), scores.get("top_ids", ()), strict=True)
        arrays[f"{prefix}top_logprobs"] = [
            make_entries(row and row[: settings.top], ids and ids[: settings.top])
            for row, ids in best
        ]
    if settings.ids:
        by_id = scores.get("named", ())
        arrays[f"{prefix}token_ids_logprobs"] = [make_entries(row, settings.ids) for row in by_id]
    return arrays
