"""The choice objects of responses and chunks: text, log probabilities, what SGLang adds."""

from typing import Any

from completions.contract.token_origins import TokenOrigin, make_mask
from completions.jobs.events import ChoiceEvent
from completions.responses import sglang, token_texts
from completions.responses.choice_record import ABORT, Choices
from completions.responses.echo import Echo
from completions.responses.logprobs import (
    CompletionLogprobs,
    TokenScore,
    iter_scores,
    make_support,
)


class ChoiceWriter:
    """Writer of one choice as its events come, or all of it at once."""

    def __init__(self, choices: Choices, index: int) -> None:
        self._choices = choices
        self._context = context = choices.context
        self._index = index
        self._begun = False
        self._text_length = 0
        self._echo = Echo(context, index) if context.echo is not None else None
        self._logprobs: CompletionLogprobs | None = None
        if context.logprobs is not None:
            texts = token_texts.load_token_texts(context.served_model)
            self._logprobs = CompletionLogprobs(context.logprobs, texts.get_text)

    def write(self, event: ChoiceEvent) -> dict[str, object]:
        """Return the choice object of an event that was already added to `choices`."""
        context, first = self._context, not self._begun
        self._begun = True
        text = event.text
        choice: dict[str, object] = {
            "index": event.index,
            "text": text,
            "logprobs": None,
            "finish_reason": event.finish_reason,
            "matched_stop": event.matched_stop,
        }
        if context.session is not None:
            choice["id"] = f"{context.id}:{event.index}"
        if self._echo is not None:
            choice["text"] = self._echo.push(event) + text
        if self._logprobs is not None:
            choice["logprobs"] = self._list_logprobs(self._logprobs, event, first)
        if context.return_token_ids:
            choice["token_ids"] = event.token_ids
            choice["token_mask"] = self._make_mask(event)
            if first and (prompt := context.get_prompt(event.index)) is not None:
                choice["prompt_token_ids"] = prompt
        if context.sampling_support:
            choice["sampling_support"] = make_support(event.extras.get("logprobs", {}))
        if context.scored and event.finish_reason is not None:
            choice["score"] = self._make_score(event)
        if context.meta_info and event.finish_reason is not None:
            record = self._choices.records[event.index]
            choice["meta_info"] = sglang.make_meta_info(self._choices, record)
        return choice

    def _make_mask(self, event: ChoiceEvent) -> list[int]:
        if self._context.scored:
            return [int(TokenOrigin.GIVEN)] * len(event.token_ids)
        return make_mask(len(event.token_ids), event.extras.get("forced", ()))

    def _make_score(self, event: ChoiceEvent) -> dict[str, Any]:
        """Make the sum of a continuation's log probabilities, and where a constraint forbids it."""
        score: dict[str, Any] = {"logprob": sum(event.extras.get("logprobs", {}).get("chosen", ()))}
        if self._context.constrained:
            allowed = self._choices.records[event.index].num_allowed
            score["forbidden_at"] = None if allowed == len(event.token_ids) else allowed
        return score

    def _list_logprobs(
        self, logprobs: CompletionLogprobs, event: ChoiceEvent, first: bool
    ) -> dict[str, object]:
        """Return the tokens whose text has arrived, at the end those without text too; with `echo`,
        the prompt's tokens come first."""
        context = self._context
        self._text_length += len(event.text)
        echoed = self._echo.length if self._echo is not None else 0
        scores = event.extras.get("logprobs")
        new_scores: list[TokenScore] = []
        if scores is not None:
            offsets = [offset + echoed for offset in scores["offsets"]]
            new_scores = list(iter_scores(event.token_ids, scores, offsets))
        prompt = self._make_prompt_rows() if first and context.echo is not None else []
        is_cut = event.finish_reason == ABORT or isinstance(event.matched_stop, str)
        ends = event.finish_reason is not None and not is_cut
        return logprobs.push(new_scores, echoed + self._text_length, prompt, ends)

    def _make_prompt_rows(self) -> list[TokenScore]:
        context = self._context
        scores = self._choices.get_prompt_scores(self._index)
        prompt = context.get_prompt(self._index)
        if scores is None or prompt is None:
            return []
        offsets = token_texts.load_token_texts(context.served_model).find_offsets(
            prompt, context.skip_special_tokens
        )
        return list(iter_scores(prompt, scores, offsets))
