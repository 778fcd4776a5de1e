"""OpenAI's completion objects from a job's events: whole responses, chunks, polled states."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from completions.exceptions import from_job_error
from completions.jobs.events import ChoiceEvent, EndEvent, Usage
from completions.jobs.record import JobRecord
from completions.responses.choice_record import ChoiceRecord, Choices
from completions.responses.choices import ChoiceWriter
from completions.responses.sglang import sglext
from completions.responses.usage import usage_object
from completions.responses.view import ViewFields

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


class View(ViewFields):
    """The view of a completion."""

    __slots__ = ()
    id_prefix: ClassVar[str] = "cmpl-"
    object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"
    path: ClassVar[str] = "/v1/completions"

    def collected(self) -> "Collected":
        """Folds the job's events into one response."""
        return Collected(self)

    def chunks(self) -> "Chunks":
        """Turns the job's events into stream chunks."""
        return Chunks(self)


class Collected:
    """Folds a job's events into the choices of one response."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.choices = Choices(view)

    def add(self, events: Sequence[ChoiceEvent]) -> None:
        for event in events:
            self.choices.add(event)

    def response(self, usage: Usage | None) -> dict[str, Any]:
        """The completion object of contract 3.1."""
        return self._body(usage, ended=True)

    def polled(self, job: JobRecord) -> dict[str, Any]:
        """The same with the state of a polled job; it has no choices before its end."""
        body = {
            **self._body(job.usage, job.has_ended),
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
            "choices": [self.choice(record) for record in self.choices.records] if ended else [],
            "usage": usage and usage_object(usage, self.reasoning_tokens(), self._view.prices),
            "metadata": {"weight_version": self._view.weight_version},
        }
        if ended and (extension := sglext(self.choices)):
            body["sglext"] = extension
        return body

    def reasoning_tokens(self) -> int:
        """How many tokens of all choices are thoughts."""
        return 0

    def choice(self, record: ChoiceRecord) -> dict[str, Any]:
        """The object of a whole choice."""
        choice = ChoiceWriter(self.choices, record.index).write(record.as_event())
        if self._view.hidden_states:
            choice["hidden_states"] = record.hidden_states
        return choice


class Chunks:
    """Turns a job's events into the chunks of contract 3.2, each with at most one choice. They are
    numbered from 1, and the same whenever the same events are read."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.choices = Choices(view)
        self._writers = [ChoiceWriter(self.choices, i) for i in range(view.num_choices)]
        self._number = 0

    def of(self, events: Sequence[ChoiceEvent]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(sequence number, chunk) for each choice of each event."""
        for event in events:
            record = self.choices.add(event)
            for choice in self.choice_objects(event):
                yield self._numbered(self._chunk(choice, record))

    def end(self, end: EndEvent) -> Iterator[tuple[int, dict[str, Any]]]:
        """The chunks between the last choice and `[DONE]`: an error; or, as in contract 3.2,
        choices cut short, hidden states by choice, SGLang's extension and the usage."""
        cut = self.choices.end_at(end)
        if end.error is not None and not cut:
            yield self._numbered(from_job_error(end.error.code, end.error.message).envelope())
            return
        yield from self.of(cut)
        for record in self.choices.records:
            if record.hidden_states is not None:
                yield self._numbered(self._chunk(self.hidden_states(record), record))
        if extension := sglext(self.choices):
            yield self._numbered({**self.envelope(), "usage": None, "sglext": extension})
        if self._view.include_usage and end.usage is not None:
            used = usage_object(end.usage, self.reasoning_tokens(), self._view.prices)
            yield self._numbered({**self.envelope(), "usage": used})

    def envelope(self) -> dict[str, Any]:
        """The keys that a chunk without a choice begins with."""
        return {**self._view.envelope(), "object": self._view.chunk_object, "choices": []}

    def reasoning_tokens(self, index: int | None = None) -> int:
        """How many tokens of one choice, or of all, are thoughts."""
        return 0

    def choice_objects(self, event: ChoiceEvent) -> Iterator[dict[str, Any]]:
        """The choice objects of an event that was already added to `choices`, one for each
        chunk."""
        yield self._writers[event.index].write(event)

    def hidden_states(self, record: ChoiceRecord) -> dict[str, Any]:
        """The choice object of the chunk with hidden states."""
        nothing = ChoiceEvent(0, record.index, [], "", None, None)
        choice = self._writers[record.index].write(nothing)
        return {**choice, "hidden_states": record.hidden_states}

    def _numbered(self, chunk: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self._number += 1
        chunk["sequence_number"] = self._number
        return self._number, chunk

    def _chunk(self, choice: dict[str, Any], record: ChoiceRecord) -> dict[str, Any]:
        usage = None
        if self._view.continuous_usage_stats:
            prompt = self._view.prompt_lengths[record.index // self._view.n]
            so_far = Usage(prompt, len(record.token_ids), record.cached_tokens)
            usage = usage_object(so_far, self.reasoning_tokens(record.index))
        return {**self.envelope(), "choices": [choice], "usage": usage}
