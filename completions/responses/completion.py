"""A job's events as OpenAI's completion objects: whole responses, stream chunks, polled states."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from completions.errors import from_job_error
from completions.jobs.events import ChoiceEvent, EndEvent, JobError, Usage
from completions.jobs.record import JobRecord
from completions.responses.choice_record import ChoiceRecord
from completions.responses.choices import ABORT, Choices, ChoiceWriter
from completions.responses.logprobs import Native
from completions.responses.usage import usage_object

_INCOMPLETE: Final[Mapping[str, str]] = {
    "queue_timeout": "expired",
    "generation_timeout": "deadline",
}
"""Why a job did not come to its end, by the code of its error."""
STATUS: Final[Mapping[str, str]] = {
    "queued": "queued",
    "running": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True)
class View:
    """What responses of a job are built from; stored with it, so that any process can answer."""

    id_prefix: ClassVar = "cmpl-"
    object: ClassVar = "text_completion"
    chunk_object: ClassVar = "text_completion"
    path: ClassVar = "/v1/completions"

    id: str
    model: str
    """As the request names it."""
    created: int
    n: int
    prompt_lengths: Sequence[int]
    base_model: str | None = None
    """The served model, where `model` names an adapter, too."""
    prompts: Sequence[Sequence[int]] | None = None
    """Only where something in the response needs them."""
    return_token_ids: bool = False
    echo: Sequence[str] | None = None
    """The prompts' texts, where they are to come before the completions'."""
    logprobs: int | None = None
    """Alternatives per token in `choices[].logprobs`."""
    native: Sequence[Sequence[Any] | None] | None = None
    """Per prompt the fields of a Native."""
    text_in_logprobs: bool = False
    meta_info: bool = False
    hidden_states: bool = False
    routed_experts: bool = False
    cached_tokens_details: bool = False
    rid: str | Sequence[str] | None = None
    truncated_tokens: int = 0
    include_usage: bool = False
    continuous_usage_stats: bool = False
    obfuscation: bool = False
    prices: Mapping[str, float] | None = None
    """Of a million tokens, when the job was submitted."""
    constrained: bool = False
    default_length: bool = False
    """Whether the route, not the request, said after how many tokens choices end."""
    grammar_compile_ms: float | None = None
    weight_version: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Without what is as by default."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in values if value != each.default}

    @property
    def served_model(self) -> str:
        return self.base_model or self.model

    @property
    def num_choices(self) -> int:
        return len(self.prompt_lengths) * self.n

    @property
    def location(self) -> str:
        """Where this completion is found again."""
        return f"{self.path}/{self.id}"

    def collected(self) -> "Collected":
        """What folds the job's events into one response."""
        return Collected(self)

    def chunks(self) -> "Chunks":
        """What turns the job's events into stream chunks."""
        return Chunks(self)

    def envelope(self) -> dict[str, Any]:
        """The keys that every object of this completion begins with."""
        envelope: dict[str, Any] = {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.weight_version}" if self.weight_version else None,
        }
        if self.rid is not None:
            envelope["rid"] = self.rid
        return envelope

    def rid_of(self, choice: int) -> str | None:
        """The caller's id of one choice: its own, or numbered where several share one."""
        if self.rid is None:
            return None
        if isinstance(self.rid, str):
            return self.rid if self.num_choices == 1 else f"{self.rid}_{choice}"
        prompt, number = divmod(choice, self.n)
        return self.rid[prompt] if self.n == 1 else f"{self.rid[prompt]}_{number}"

    def native_of(self, choice: int) -> Native | None:
        wish = self.native[choice // self.n] if self.native is not None else None
        return None if wish is None else Native(*wish)


class Collected:
    """Folds a job's events into the choices of one response."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._choices = Choices(view)

    def add(self, events: Sequence[ChoiceEvent]) -> None:
        for event in events:
            self._choices.add(event)

    def response(self, usage: Usage | None) -> dict[str, Any]:
        """The completion object of contract 3.1."""
        return self._body(usage, ended=True)

    def polled(self, job: JobRecord) -> dict[str, Any]:
        """The same with the state of a job that is polled; no choices before its end."""
        body = {
            **self._body(job.usage, job.ended),
            "status": STATUS[job.state],
            "error": None,
            "expires_at": int((job.finished or job.deadline) + job.ttl),
        }
        if job.error is not None:
            error = from_job_error(job.error.code, job.error.message)
            body.update(error.envelope())
            if reason := _INCOMPLETE.get(job.error.code):
                body.update(status="incomplete", incomplete_details={"reason": reason})
        return body

    def _body(self, usage: Usage | None, ended: bool) -> dict[str, Any]:
        body = {
            **self._view.envelope(),
            "choices": [self.choice(record) for record in self._choices.records] if ended else [],
            "usage": self._usage(usage) if usage else None,
            "metadata": {"weight_version": self._view.weight_version},
        }
        if ended and (sglext := self._choices.sglext()):
            body["sglext"] = sglext
        return body

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return usage_object(usage, self.reasoning_tokens(), self._view.prices)

    def finish_reasons(self) -> list[str | None]:
        """Of all choices so far."""
        return [record.finish_reason for record in self._choices.records]

    def reasoning_tokens(self) -> int:
        """Of all choices, spent on thoughts that are told apart."""
        return 0

    def choice(self, record: ChoiceRecord) -> dict[str, Any]:
        """A whole choice: all that it gained, as one event."""
        choice = ChoiceWriter(self._choices, record.index).write(record.as_event(ABORT))
        if self._view.hidden_states:
            choice["hidden_states"] = record.hidden_states
        return choice


def error_frame(error: JobError) -> dict[str, Any]:
    """The envelope of a job that failed, for a stream."""
    return from_job_error(error.code, error.message).envelope()


class Chunks:
    """Turns a job's events into the chunks of contract 3.2, one choice each."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._choices = Choices(view)
        self._writers = [ChoiceWriter(self._choices, i) for i in range(view.num_choices)]

    def of(self, events: Sequence[ChoiceEvent]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(sequence number, chunk) of each choice that an event advances."""
        for event in events:
            record = self._choices.add(event)
            choice = self._writers[event.index].write(event)
            yield event.sequence_number, self._chunk(event.sequence_number, choice, record)

    def end(self, end: EndEvent) -> Iterator[tuple[int, dict[str, Any]]]:
        """What comes between the last choice and `[DONE]`: an error, or aborts and what is told
        about the whole."""
        if end.error is not None:
            error = {**error_frame(end.error), "sequence_number": end.sequence_number}
            yield end.sequence_number, error
            return
        for number, chunk in enumerate(self._last_chunks(end), end.sequence_number):
            yield number, {**chunk, "sequence_number": number}

    def _last_chunks(self, end: EndEvent) -> Iterator[dict[str, Any]]:
        """Contract 3.2: hidden states by choice, SGLang's extension, the usage."""
        for record in self._choices.records if end.state == "cancelled" else ():
            if record.finish_reason is None:
                aborted = ChoiceEvent(0, record.index, [], "", ABORT, None)
                record.add(aborted)
                for choice in self._choice_chunks(aborted):
                    yield self._chunk(0, choice, record)
        for record in self._choices.records:
            if record.hidden_states is not None:
                yield self._chunk(0, self._with_hidden_states(record), record)
        envelope = self.envelope()
        if sglext := self._choices.sglext():
            yield {**envelope, "usage": None, "sglext": sglext}
        if self._view.include_usage and end.usage is not None:
            used = usage_object(end.usage, self.reasoning_tokens(), self._view.prices)
            yield {**envelope, "usage": used}

    def finish_reasons(self) -> list[str | None]:
        """Of all choices so far."""
        return [record.finish_reason for record in self._choices.records]

    def reasoning_tokens(self, index: int | None = None) -> int:
        """Of one choice or of all, spent on thoughts that are told apart."""
        return 0

    def envelope(self) -> dict[str, Any]:
        """What a chunk without a choice begins with."""
        return {**self._view.envelope(), "object": self._view.chunk_object, "choices": []}

    def _choice_chunks(self, event: ChoiceEvent) -> Iterator[dict[str, Any]]:
        """The choice objects of an event that `choices` holds already."""
        yield self._writers[event.index].write(event)

    def _with_hidden_states(self, record: ChoiceRecord) -> dict[str, Any]:
        states = ChoiceEvent(0, record.index, [], "", None, None)
        choice = self._writers[record.index].write(states)
        return {**choice, "hidden_states": record.hidden_states}

    def _chunk(self, number: int, choice: dict[str, Any], record: ChoiceRecord) -> dict[str, Any]:
        usage = None
        if self._view.continuous_usage_stats:
            prompt = self._view.prompt_lengths[record.index // self._view.n]
            so_far = Usage(prompt, len(record.token_ids), record.cached_tokens)
            usage = usage_object(so_far, self.reasoning_tokens(record.index))
        return {
            **self._view.envelope(),
            "object": self._view.chunk_object,
            "choices": [choice],
            "usage": usage,
            "sequence_number": number,
        }
