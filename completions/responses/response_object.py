"""The objects of the Responses API from a job's events: responses, the events of their streams."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, cast

from msgspec import structs

from completions.contract.usage import Usage
from completions.exceptions import APIError, from_job_error
from completions.jobs.events import ChoiceEvent, EndEvent, EndState, JobError
from completions.jobs.record import JobRecord
from completions.models.conversations import Item
from completions.responses import sse
from completions.responses.chat import ChatResponseContext, CollectedChat, Message
from completions.responses.choice_record import ABORT, LENGTH, ChoiceRecord
from completions.responses.completion import STATUS, Chunks, CollectedResponse
from completions.responses.items import Event, ItemWriter
from completions.responses.usage import make_usage

_ENDS: Final[Mapping[str | None, str]] = {
    None: "in_progress",
    LENGTH: "incomplete",
    ABORT: "cancelled",
}
"""The status of a response by the finish reason of its message; any other one is `completed`."""
_LAST_EVENTS: Final[Mapping[str, str]] = {
    "completed": "response.completed",
    "failed": "response.failed",
}
"""The last event of a stream by the status of its response; `response.incomplete` for others."""


class ItemsResponseContext(ChatResponseContext, frozen=True, omit_defaults=True):
    """The response context of a response of the Responses API, whose answer is items."""

    id_prefix: ClassVar[str] = "resp_"
    object: ClassVar[str] = "response"
    path: ClassVar[str] = "/v1/responses"
    not_found: ClassVar[str] = "response_not_found"

    shown: Mapping[str, Any] = {}
    """The fields of the request that the response repeats."""
    finished_at: int | None = None
    """When the job ended, if it had when this was read; not stored."""

    @classmethod
    def read_job(cls, job: JobRecord) -> Self:
        context = cls.read(job.context)
        return structs.replace(context, finished_at=job.finished and int(job.finished))

    def make_collected(self) -> "CollectedItems":
        return CollectedItems(self)

    def make_chunks(self) -> "ItemEvents":
        return ItemEvents(self)

    def make_object(
        self,
        status: str,
        output: Sequence[Item] = (),
        usage: dict[str, Any] | None = None,
        error: JobError | None = None,
        finished: float | None = None,
    ) -> dict[str, Any]:
        """Return the response object. `usage` is as chat completions have it; `finished` is when
        the job ended, where this was not read from its record."""
        is_over = status not in ("queued", "in_progress")
        return {
            "id": self.id,
            "object": self.object,
            "created_at": self.created,
            "completed_at": (self.finished_at or int(finished or time.time())) if is_over else None,
            "status": status,
            "model": self.model,
            **self.shown,
            "output": list(output),
            "error": _make_error(error) if error else None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "usage": _rename_usage(usage) if usage else None,
        }


def _make_error(error: JobError) -> dict[str, str]:
    """Return the error of a failed response, whose codes are OpenAI's."""
    shown = from_job_error(error.code, error.message)
    is_fault = shown.status_code >= 500
    return {"code": "server_error" if is_fault else "invalid_prompt", "message": shown.message}


def _rename_usage(usage: Mapping[str, Any]) -> dict[str, object]:
    """Return the usage of a chat completion under the names of the Responses API."""
    costs = {name: usage[name] for name in ("cost", "cost_details") if name in usage}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,  # the cache is free of charge
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
        **costs,
    }


class _Answer:
    """The items of a response and the events that make them, as a job's events come."""

    def __init__(self, context: ItemsResponseContext) -> None:
        self._context = context
        self._message = Message(context)
        self._writer = ItemWriter(context.id, context.make_call_id)
        self._finish_reason: str | None = None

    def push(self, event: ChoiceEvent) -> Iterator[Event]:
        logprobs = self._context.make_logprobs(event)
        delta = self._message.push(event)
        yield from self._writer.push(delta, logprobs["content"] if logprobs else ())
        if event.finish_reason is not None:
            self._finish_reason = event.finish_reason
            status = "completed" if self.status == "completed" else "incomplete"
            yield from self._writer.finish(status)

    @property
    def status(self) -> str:
        return _ENDS.get(self._finish_reason, "completed")

    @property
    def items(self) -> Sequence[Item]:
        return self._writer.items

    @property
    def reasoning_tokens(self) -> int:
        return self._message.reasoning_tokens

    def make_object(
        self,
        usage: Usage | None,
        end: EndEvent | None = None,
        finished: float | None = None,
    ) -> dict[str, Any]:
        """Return the response with its complete items, after the end of its job if that is
        known."""
        status, error = self.status, None
        if end is not None and end.state == "cancelled":
            status = "cancelled"
        elif end is not None and status == "in_progress":
            status, error = "failed", end.error
        used = make_usage(usage, self.reasoning_tokens, self._context.prices) if usage else None
        return self._context.make_object(status, self.items, used, error, finished)


class CollectedItems(CollectedResponse):
    """Collector of a job's events into a response. The text is parsed once, when it is whole,
    unless log probabilities have to stay with their part of it."""

    _context: ItemsResponseContext

    def __init__(self, context: ItemsResponseContext) -> None:
        super().__init__(context)
        self._events: list[ChoiceEvent] = []

    def add(self, events: Sequence[ChoiceEvent]) -> None:
        super().add(events)
        if self._context.alternatives is not None:
            self._events += events

    def make_response(self, usage: Usage | None) -> dict[str, object]:
        return self._read_answer(self._context).make_object(usage, finished=self.finished)

    def make_polled(self, job: JobRecord) -> dict[str, object]:
        context = self._context.read_job(job)
        if not job.has_ended:
            return context.make_object(STATUS[job.state])
        end = EndEvent(0, cast(EndState, job.state), job.error, job.usage)
        self.add(self.choices.end_at(end))
        return self._read_answer(context).make_object(job.usage, end)

    def make_choice(self, record: ChoiceRecord) -> dict[str, object]:
        """Return the choice that a chat completion would have."""
        chat = CollectedChat(self._context)
        chat.add([record.to_event()])
        return chat.make_choice(chat.choices.records[0])

    def _read_answer(self, context: ItemsResponseContext) -> "_Answer":
        answer, (record,) = _Answer(context), self.choices.records
        whole = structs.replace(record.to_event(), finish_reason=record.finish_reason)
        for event in self._events or [whole]:
            for _ in answer.push(event):
                pass
        return answer


class ItemEvents(Chunks):
    """Writer of the events of a stream. They are numbered from 0, as OpenAI numbers them, and the
    same whenever the same events are read."""

    _context: ItemsResponseContext

    def __init__(self, context: ItemsResponseContext) -> None:
        super().__init__(context)
        self._number = -1
        self._answer = _Answer(context)
        self._is_queued = bool(context.shown.get("background"))
        """Whether the client does not know yet that the job runs."""

    def make_start(self) -> Iterator[tuple[int, Event]]:
        status = "queued" if self._is_queued else "in_progress"
        snapshot = self._context.make_object(status)
        yield self._number_chunk({"type": "response.created", "response": snapshot})
        yield self._number_chunk({"type": f"response.{status}", "response": snapshot})

    def make_chunks(self, events: Sequence[ChoiceEvent]) -> Iterator[tuple[int, Event]]:
        if self._is_queued:
            self._is_queued = False
            snapshot = self._context.make_object("in_progress")
            yield self._number_chunk({"type": "response.in_progress", "response": snapshot})
        for event in events:
            self.choices.add(event)
            for each in self._answer.push(event):
                yield self._number_chunk(each)

    def make_end(self, end: EndEvent) -> Iterator[tuple[int, Event]]:
        if cut := self.choices.end_at(end):
            yield from self.make_chunks(cut)
        response = self._answer.make_object(end.usage, end, end.finished)
        kind = _LAST_EVENTS.get(response["status"], "response.incomplete")
        yield self._number_chunk({"type": kind, "response": response})

    def make_error(self, error: APIError) -> Event:
        """Return the event under the last number: the stream can be read again after it. OpenAI's
        reference has the fields in the event, Open Responses and OpenAI's servers in `error`."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return {
            "type": "error",
            "sequence_number": max(0, self._number),
            **fields,
            "error": {"type": error.type, **fields},
        }

    def make_meta(self, meta: Mapping[str, object]) -> Event:
        return self._number_chunk({"type": "quire:meta", "meta": meta})[1]

    def make_frame(self, chunk: Event, event_id: int | None = None) -> bytes:
        if self._context.obfuscation and "delta" in chunk:
            chunk = {**chunk, "obfuscation": sse.make_obfuscation(chunk)}
        return sse.make_frame(chunk, event_id, chunk["type"])
