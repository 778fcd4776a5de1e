"""Choices of a job as objects of responses and chunks: text, log probabilities, meta info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from completions.jobs.events import ChoiceEvent
from completions.responses import token_texts
from completions.responses.choice_record import ChoiceRecord
from completions.responses.logprobs import Legacy, Native, Row, native, rows

if TYPE_CHECKING:
    from completions.responses.completion import View

ABORT: Final = "abort"
"""The finish reason of a choice that was cancelled, as in SGLang."""


class Choices:
    """All choices of one job, as their events arrive."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.records = [ChoiceRecord(index) for index in range(view.num_choices)]

    def add(self, event: ChoiceEvent) -> ChoiceRecord:
        record = self.records[event.index]
        record.add(event)
        return record

    def prompt_scores(self, choice: int) -> Mapping[str, Any] | None:
        """Those of a prompt come with the first of its choices."""
        return self.records[choice - choice % self.view.n].prompt_scores

    def meta_info(self, record: ChoiceRecord) -> dict[str, Any]:
        """What SGLang's native interface tells about a choice (contract, section 1.4)."""
        view = self.view
        info: dict[str, Any] = {
            "id": view.rid_of(record.index) or view.id,
            "prompt_tokens": view.prompt_lengths[record.index // view.n],
            "completion_tokens": len(record.token_ids),
            "cached_tokens": record.cached_tokens,
            "finish_reason": _finish_object(record),
        }
        if record.matched_stop_text is not None:
            info["matched_stop_text"] = record.matched_stop_text
        if record.routed_experts is not None:
            info["routed_experts"] = record.routed_experts
        wish = view.native_of(record.index)
        if wish is not None:
            info |= self._native(record, wish)
        return info

    def _native(self, record: ChoiceRecord, wish: Native) -> dict[str, Any]:
        view = self.view
        text_of = token_texts.of(view.served_model).text if view.text_in_logprobs else None
        found: dict[str, Any] = {"input_token_logprobs": []} if wish.tokens else {}
        scores = self.prompt_scores(record.index)
        if wish.start >= 0 and scores is not None and view.prompts is not None:
            prompt = view.prompts[record.index // view.n]
            ids = prompt[wish.start :]
            found |= native("input_", ids, _from(scores, len(ids)), wish, text_of)
        found |= native("output_", record.token_ids, record.scores, wish, text_of)
        if wish.tokens:
            found["output_token_logprobs_length"] = len(record.token_ids)
        return found

    def sglext(self) -> dict[str, Any]:
        """What SGLang tells about a whole response, by its first choice."""
        view, first = self.view, self.records[0]
        found: dict[str, Any] = {}
        if view.routed_experts:
            found["routed_experts"] = first.routed_experts
        if view.cached_tokens_details:
            found["cached_tokens_details"] = {"device": first.cached_tokens}
        return found


def _from(scores: Mapping[str, Any], length: int) -> dict[str, Any]:
    """The last `length` rows. Other fields may have asked for more of the prompt; SGLang's first
    row is null wherever it begins."""
    cut = {name: list(values)[len(values) - length :] for name, values in scores.items()}
    for values in cut.values():
        values[:1] = [None] * len(values[:1])
    return cut


def _finish_object(record: ChoiceRecord) -> dict[str, Any]:
    reason = record.finish_reason or ABORT
    if reason == "length":
        return {"type": reason, "length": len(record.token_ids)}
    if reason == "stop":
        return {"type": reason, "matched": record.matched_stop}
    return {"type": reason, "message": "The request was cancelled."}


class ChoiceWriter:
    """Writes one choice as its events come, or all of it at once."""

    def __init__(self, choices: Choices, index: int) -> None:
        self._choices = choices
        self._view = view = choices.view
        self._index = index
        self._begun = False
        self._text_length = 0
        self._legacy: Legacy | None = None
        if view.logprobs is not None:
            self._legacy = Legacy(view.logprobs, token_texts.of(view.served_model).text)

    def write(self, event: ChoiceEvent) -> dict[str, Any]:
        """The choice object of an event that `choices` holds already."""
        view, first = self._view, not self._begun
        self._begun = True
        text = event.text
        choice: dict[str, Any] = {
            "index": event.index,
            "text": text,
            "logprobs": None,
            "finish_reason": event.finish_reason,
            "matched_stop": event.matched_stop,
        }
        if view.echo is not None and first:
            choice["text"] = view.echo[event.index // view.n] + text
        if self._legacy is not None:
            choice["logprobs"] = self._logprobs(self._legacy, event, first)
        if view.return_token_ids:
            choice["token_ids"] = event.token_ids
            if first and view.prompts is not None:
                choice["prompt_token_ids"] = view.prompts[event.index // view.n]
        if view.meta_info and event.finish_reason is not None:
            choice["meta_info"] = self._choices.meta_info(self._choices.records[event.index])
        return choice

    def _logprobs(self, legacy: Legacy, event: ChoiceEvent, first: bool) -> dict[str, Any]:
        """The completion's tokens whose text is there, with `echo` after the prompt's."""
        view = self._view
        self._text_length += len(event.text)
        echoed = len(view.echo[event.index // view.n]) if view.echo is not None else 0
        scores = event.extras.get("logprobs")
        gained: list[Row] = []
        if scores is not None:
            offsets = [offset + echoed for offset in scores["offsets"]]
            gained = list(rows(event.token_ids, scores, offsets))
        prompt = self._prompt_rows() if first and view.echo is not None else []
        return legacy.push(prompt + gained, echoed + self._text_length)

    def _prompt_rows(self) -> list[Row]:
        view = self._view
        scores = self._choices.prompt_scores(self._index)
        if scores is None or view.prompts is None:
            return []
        prompt = view.prompts[self._index // view.n]
        offsets = token_texts.of(view.served_model).offsets(prompt)
        return list(rows(prompt, scores, offsets))
