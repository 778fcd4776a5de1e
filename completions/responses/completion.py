"""OpenAI's completion objects from a job's events: whole responses, chunks, polled states."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from completions.contract.token_origins import TokenOrigin, make_mask
from completions.contract.usage import Usage
from completions.exceptions import APIError, from_job_error
from completions.jobs.events import ChoiceEvent, EndEvent
from completions.jobs.record import JobRecord
from completions.responses import sglang, sse, token_texts
from completions.responses.choice_record import ABORT, ChoiceRecord, Choices
from completions.responses.echo import Echo
from completions.responses.logprobs import (
    CompletionLogprobs,
    TokenScore,
    iter_scores,
    make_prompt_logprobs,
    make_support,
)
from completions.responses.response_context import ResponseFields
from completions.responses.usage import make_usage

_INCOMPLETE: Final[Mapping[str, str]] = {
    "queue_timeout": "expired",
    "generation_timeout": "deadline",
}
"""Why a job is incomplete, by the code of its error."""
STATUS: Final[Mapping[str, str]] = {
    "queued": "queued",
    "running": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""The status of a polled completion, by the state of its job."""


class ResponseContext(ResponseFields, frozen=True, omit_defaults=True):
    """The response context of a completion."""

    id_prefix: ClassVar[str] = "cmpl-"
    object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"
    path: ClassVar[str] = "/v1/completions"

    @classmethod
    def read_job(cls, job: JobRecord) -> Self:
        """Read the context of a job."""
        return cls.read(job.context)

    def make_collected(self) -> "CollectedResponse":
        """Make the collector of the job's events into one response."""
        return CollectedResponse(self)

    def make_chunks(self) -> "Chunks":
        """Make the writer of stream chunks from the job's events."""
        return Chunks(self)


class CollectedResponse:
    """Collector of a job's events into the choices of one response."""

    def __init__(self, context: ResponseContext) -> None:
        self._context = context
        self.choices = Choices(context)
        self.finished: float | None = None
        """When the job ended, where an event said so."""

    def add(self, events: Sequence[ChoiceEvent]) -> None:
        for event in events:
            self.choices.add(event)

    def make_response(self, usage: Usage | None) -> dict[str, object]:
        """Make the completion object."""
        return self._make_body(usage, ended=True)

    def make_polled(self, job: JobRecord) -> dict[str, object]:
        """Return the same with the state of a polled job; it has no choices before its end."""
        body = {
            **self._make_body(job.usage, job.has_ended),
            "status": STATUS[job.state],
            "error": None,
            "expires_at": int((job.finished or time.time() + job.seconds_left) + job.ttl),
        }
        if job.error is not None:
            error = from_job_error(job.error.code, job.error.message)
            body.update(error.envelope())
            if reason := _INCOMPLETE.get(job.error.code):
                body.update(status="incomplete", incomplete_details={"reason": reason})
        return body

    def _make_body(self, usage: Usage | None, ended: bool) -> dict[str, object]:
        body = {
            **self._context.make_envelope(),
            "choices": [self.make_choice(record) for record in self.choices.records]
            if ended
            else [],
            "usage": usage
            and make_usage(usage, self.count_reasoning_tokens(), self._context.prices),
            "metadata": {"weight_version": self._context.weight_version},
        }
        if ended and (extension := self.choices.make_sglext()):
            body["sglext"] = extension
        return body

    def count_reasoning_tokens(self) -> int:
        """Return how many tokens of all choices are reasoning."""
        return 0

    def make_choice(self, record: ChoiceRecord) -> dict[str, Any]:
        """Return the object of a whole choice."""
        choice = ChoiceWriter(self.choices, record.index).write(record.to_event())
        if self._context.hidden_states:
            choice["hidden_states"] = record.hidden_states
        if self._context.prompt_logprobs is not None:
            choice["prompt_logprobs"] = self.make_prompt_logprobs(record)
        return choice

    def make_prompt_logprobs(
        self, record: ChoiceRecord
    ) -> list[dict[str, dict[str, object]] | None] | None:
        """Return vLLM's log probabilities of a choice's prompt; None if they were not computed."""
        context, scores = self._context, self.choices.get_prompt_scores(record.index)
        prompt = context.get_prompt(record.index)
        if scores is None or prompt is None or context.prompt_logprobs is None:
            return None
        texts = token_texts.load_token_texts(context.served_model)
        return make_prompt_logprobs(prompt, scores, context.prompt_logprobs, texts)


class Chunks:
    """Writer of text_completion chunks from a job's events, each with at most one choice. Chunks
    are numbered from 1, and the same whenever the same events are read."""

    keep_alive: ClassVar[bytes] = sse.KEEP_ALIVE
    """What is sent while there is no event."""
    done: ClassVar[Sequence[bytes]] = (sse.DONE,)
    """The frames after the last event."""

    def __init__(self, context: ResponseContext) -> None:
        self._context = context
        self.choices = Choices(context)
        self._writers = [ChoiceWriter(self.choices, i) for i in range(context.num_choices)]
        self._number = 0
        self._envelope = self.make_envelope()

    def make_chunks(self, events: Sequence[ChoiceEvent]) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield (sequence number, chunk) for each choice of each event."""
        for event in events:
            record = self.choices.add(event)
            for choice in self.make_choices(event):
                yield self._number_chunk(self._make_chunk(choice, record))

    def make_end(self, end: EndEvent) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the chunks between the last choice and `[DONE]`: an error; or choices cut short,
        and what follows the last of them."""
        cut = self.choices.end_at(end)
        if end.error is not None and not cut:
            error = from_job_error(end.error.code, end.error.message)
            yield self._number_chunk(self.make_error(error))
            return
        yield from self.make_chunks(cut)
        yield from self.make_ending(end)

    def make_ending(self, end: EndEvent) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield what follows the last choice: hidden states by choice, SGLang's extension and the
        usage."""
        for record in self.choices.records:
            if record.hidden_states is not None:
                yield self._number_chunk(self._make_chunk(self.make_hidden_states(record), record))
        if extension := self.choices.make_sglext():
            yield self._number_chunk({**self._envelope, "usage": None, "sglext": extension})
        if self._context.include_usage and end.usage is not None:
            used = make_usage(end.usage, self.count_reasoning_tokens(), self._context.prices)
            yield self._number_chunk({**self._envelope, "usage": used})

    def make_start(self) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield what precedes the job's first event."""
        return iter(())

    def make_error(self, error: APIError) -> dict[str, object]:
        """Return the last chunk of a stream that ends before its job."""
        return error.envelope(self._context.path)

    def make_meta(self, meta: Mapping[str, object]) -> dict[str, object]:
        """Return the chunk that says how the job ran."""
        return {**self._envelope, "usage": None, "meta": meta}

    def make_frame(self, chunk: dict[str, object], event_id: int | None = None) -> bytes:
        """Return a chunk as a server-sent event."""
        if self._context.obfuscation and chunk.get("choices"):
            chunk = {**chunk, "obfuscation": sse.make_obfuscation(chunk)}
        return sse.make_frame(chunk, event_id)

    def make_envelope(self) -> dict[str, object]:
        """Return the keys that a chunk without a choice begins with."""
        return {
            **self._context.make_envelope(),
            "object": self._context.chunk_object,
            "choices": [],
        }

    def count_reasoning_tokens(self, index: int | None = None) -> int:
        """Return how many tokens of one choice, or of all, are reasoning."""
        return 0

    def make_choices(self, event: ChoiceEvent) -> Iterable[dict[str, object]]:
        """Return the choice objects of an event that was already added to `choices`, one for each
        chunk."""
        return (self._writers[event.index].write(event),)

    def make_hidden_states(self, record: ChoiceRecord) -> dict[str, object]:
        """Return the choice object of the chunk with hidden states."""
        nothing = ChoiceEvent(record.index, [], "")
        choice = self._writers[record.index].write(nothing)
        return {**choice, "hidden_states": record.hidden_states}

    def _number_chunk(self, chunk: dict[str, object]) -> tuple[int, dict[str, object]]:
        self._number += 1
        chunk["sequence_number"] = self._number
        return self._number, chunk

    def _make_chunk(self, choice: dict[str, object], record: ChoiceRecord) -> dict[str, object]:
        usage = None
        if self._context.continuous_usage_stats:
            prompt = self._context.prompt_lengths[record.index // self._context.n]
            so_far = Usage(prompt, len(record.token_ids), record.cached_tokens)
            usage = make_usage(so_far, self.count_reasoning_tokens(record.index))
        return {**self._envelope, "choices": [choice], "usage": usage}


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
        self._has_more = (
            self._echo is not None
            or self._logprobs is not None
            or context.session is not None
            or context.return_token_ids
            or context.sampling_support
            or context.scored
            or context.meta_info
        )
        """Whether a choice has more than the fields of OpenAI's. Few requests ask for any."""

    def write(self, event: ChoiceEvent) -> dict[str, object]:
        """Return the choice object of an event that was already added to `choices`."""
        choice: dict[str, object] = {
            "index": event.index,
            "text": event.text,
            "logprobs": None,
            "finish_reason": event.finish_reason,
            "matched_stop": event.matched_stop,
        }
        if self._has_more:
            self._add_more(choice, event)
        return choice

    def _add_more(self, choice: dict[str, object], event: ChoiceEvent) -> None:
        """Add what the request asks for, all of which `_has_more` names."""
        context, first = self._context, not self._begun
        self._begun = True
        if context.session is not None:
            choice["id"] = f"{context.id}:{event.index}"
        if self._echo is not None:
            choice["text"] = self._echo.push(event) + event.text
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

    def _make_mask(self, event: ChoiceEvent) -> list[int]:
        if self._context.scored:
            return [int(TokenOrigin.GIVEN)] * len(event.token_ids)
        return make_mask(len(event.token_ids), event.extras.get("forced", ()))

    def _make_score(self, event: ChoiceEvent) -> dict[str, object]:
        """Make the sum of a continuation's log probabilities, and where a constraint forbids it."""
        chosen = event.extras.get("logprobs", {}).get("chosen", ())
        score: dict[str, object] = {"logprob": sum(each for each in chosen if each is not None)}
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
