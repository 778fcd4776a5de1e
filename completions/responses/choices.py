"""The choice objects of responses and chunks: text, log probabilities, what SGLang adds."""

from typing import Any

from completions.jobs.events import ChoiceEvent
from completions.responses import sglang, token_texts
from completions.responses.choice_record import ABORT, Choices
from completions.responses.echo import Echo
from completions.responses.logprobs import CompletionLogprobs, Row, rows


class ChoiceWriter:
    """Writes one choice as its events come, or all of it at once."""

    def __init__(self, choices: Choices, index: int) -> None:
        self._choices = choices
        self._view = view = choices.view
        self._index = index
        self._begun = False
        self._text_length = 0
        self._echo = Echo(view, index) if view.echo is not None else None
        self._logprobs: CompletionLogprobs | None = None
        if view.logprobs is not None:
            texts = token_texts.of(view.served_model)
            self._logprobs = CompletionLogprobs(view.logprobs, texts.text)

    def write(self, event: ChoiceEvent) -> dict[str, Any]:
        """The choice object of an event that was already added to `choices`."""
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
        if self._echo is not None:
            choice["text"] = self._echo.push(event) + text
        if self._logprobs is not None:
            choice["logprobs"] = self._listed(self._logprobs, event, first)
        if view.return_token_ids:
            choice["token_ids"] = event.token_ids
            if first and view.prompts is not None:
                choice["prompt_token_ids"] = view.prompts[event.index // view.n]
        if view.meta_info and event.finish_reason is not None:
            record = self._choices.records[event.index]
            choice["meta_info"] = sglang.meta_info(self._choices, record)
        return choice

    def _listed(
        self, logprobs: CompletionLogprobs, event: ChoiceEvent, first: bool
    ) -> dict[str, Any]:
        """The tokens whose text has arrived, at the end those without text too; with `echo`, the
        prompt's tokens come first."""
        view = self._view
        self._text_length += len(event.text)
        echoed = self._echo.length if self._echo is not None else 0
        scores = event.extras.get("logprobs")
        gained: list[Row] = []
        if scores is not None:
            offsets = [offset + echoed for offset in scores["offsets"]]
            gained = list(rows(event.token_ids, scores, offsets))
        prompt = self._prompt_rows() if first and view.echo is not None else []
        is_cut = event.finish_reason == ABORT or isinstance(event.matched_stop, str)
        ends = event.finish_reason is not None and not is_cut
        return logprobs.push(gained, echoed + self._text_length, prompt, ends)

    def _prompt_rows(self) -> list[Row]:
        view = self._view
        scores = self._choices.prompt_scores(self._index)
        if scores is None or view.prompts is None:
            return []
        prompt = view.prompts[self._index // view.n]
        offsets = token_texts.of(view.served_model).offsets(prompt, view.skip_special_tokens)
        return list(rows(prompt, scores, offsets))
