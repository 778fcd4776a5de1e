"""A job's events in the shapes of other engines' own routes: SGLang's /generate and vLLM's
/inference/v1/generate. The job is a completion otherwise, and can be polled as one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from completions.contract.usage import Usage
from completions.exceptions import from_job_error
from completions.jobs.events import ChoiceEvent, EndEvent, TokenScores
from completions.responses.choice_record import ChoiceRecord
from completions.responses.completion import Chunks, CollectedResponse, ResponseContext
from completions.responses.logprobs import iter_scores
from completions.responses.sglang import LogprobArrays, make_meta_info
from completions.responses.usage import make_usage

_VALUES_PER_TOKEN = 512
"""Values of a chunk of SGLang's that are sent for each token that it adds: token ids and log
probabilities. It bounds what a token of a long stream costs."""


class NativeContext(ResponseContext, frozen=True, omit_defaults=True):
    """The response context of another engine's own route."""

    @property
    def location(self) -> str:
        return f"{ResponseContext.path}/{self.id}"


class SGLangContext(NativeContext, frozen=True, omit_defaults=True):
    path: ClassVar[str] = "/generate"

    def make_collected(self) -> CollectedResponse:
        return _CollectedSGLang(self)

    def make_chunks(self) -> Chunks:
        return _SGLangChunks(self)


class VLLMContext(NativeContext, frozen=True, omit_defaults=True):
    path: ClassVar[str] = "/inference/v1/generate"

    @property
    def request_id(self) -> str:
        return self.rid if isinstance(self.rid, str) else self.id

    def make_collected(self) -> CollectedResponse:
        return _CollectedVLLM(self)

    def make_chunks(self) -> Chunks:
        return _VLLMChunks(self)

    def make_choice(self, event: ChoiceEvent) -> dict[str, object]:
        """Make the choice object of an event, or of a whole choice."""
        scores = event.extras.get("logprobs")
        return {
            "index": event.index,
            "logprobs": None
            if self.logprobs is None or scores is None
            else {"content": _make_logprobs(event, scores, self.logprobs)},
            "finish_reason": event.finish_reason,
            "token_ids": event.token_ids,
        }


class _CollectedSGLang(CollectedResponse):
    def make_response(self, usage: Usage | None) -> Any:
        """Make an output, or an array of them for an array of prompts and for several choices."""
        outputs = [self._make_output(record) for record in self.choices.records]
        return outputs if self._context.is_batch else outputs[0]

    def _make_output(self, record: ChoiceRecord) -> dict[str, object]:
        return {
            "text": "".join(record.texts),
            "output_ids": record.token_ids,
            "meta_info": {
                **make_meta_info(self.choices, record),
                "weight_version": self._context.weight_version,
            },
        }


class _SGLangChunks(Chunks):
    """Each chunk is the whole output so far, as SGLang sends it. So the longer it is, the more
    tokens a chunk adds: the bytes of a stream grow with its length, not with its square."""

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        records = self.choices.records
        self._arrays = [LogprobArrays(self.choices, record) for record in records]
        self._sent: list[int | None] = [None] * len(records)
        """The tokens of each choice's last chunk."""

    def make_chunks(self, events: Sequence[ChoiceEvent]) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the chunks that are due. Each event is looked at by itself: those of several steps
        are stored together, and a stream that is read again has the same numbers."""
        for event in events:
            record = self.choices.add(event)
            if self._is_due(record):
                yield self._send(record)

    def _is_due(self, record: ChoiceRecord) -> bool:
        sent, length = self._sent[record.index], len(record.token_ids)
        if sent is None or record.finish_reason is not None:
            return True
        size = length + self._arrays[record.index].count_values()
        return (length - sent) * _VALUES_PER_TOKEN >= size

    def _send(self, record: ChoiceRecord) -> tuple[int, dict[str, object]]:
        self._sent[record.index] = len(record.token_ids)
        return self._number_chunk(self._make_chunk({}, record))

    def make_end(self, end: EndEvent) -> Iterator[tuple[int, dict[str, object]]]:
        cut = self.choices.end_at(end)
        if end.error is not None and not cut:
            for record in self.choices.records:
                if (self._sent[record.index] or 0) < len(record.token_ids):
                    yield self._send(record)
            error = from_job_error(end.error.code, end.error.message)
            yield self._number_chunk(self.make_error(error))
        else:
            yield from self.make_chunks(cut)

    def make_envelope(self) -> dict[str, object]:
        return {}

    def _make_chunk(self, choice: dict[str, object], record: ChoiceRecord) -> dict[str, object]:
        info = make_meta_info(self.choices, record, self._arrays[record.index])
        if record.finish_reason is None:
            info["finish_reason"] = None
        info["weight_version"] = self._context.weight_version
        output: dict[str, object] = {"text": "".join(record.texts), "output_ids": record.token_ids}
        if self._context.is_batch:
            output["index"] = record.index
        return {**output, "meta_info": info}


class _CollectedVLLM(CollectedResponse):
    _context: VLLMContext

    def make_response(self, usage: Usage | None) -> dict[str, object]:
        context, records = self._context, self.choices.records
        return {
            "request_id": context.request_id,
            "model": context.model,
            "created": context.created,
            "choices": [context.make_choice(record.to_event()) for record in records],
            "usage": usage and make_usage(usage, prices=context.prices),
            "prompt_logprobs": self.make_prompt_logprobs(records[0]),
            "kv_transfer_params": None,
        }


class _VLLMChunks(Chunks):
    _context: VLLMContext

    def make_envelope(self) -> dict[str, object]:
        return {"request_id": self._context.request_id, "choices": []}

    def make_choices(self, event: ChoiceEvent) -> Iterable[dict[str, object]]:
        return (self._context.make_choice(event),)


def _make_logprobs(event: ChoiceEvent, scores: TokenScores, top: int) -> list[dict[str, object]]:
    """Make vLLM's entries, in which a token is `token_id:` and its id."""

    def make_entry(token_id: int, score: float | None) -> dict[str, object]:
        return {"token": f"token_id:{token_id}", "logprob": score, "bytes": None}

    return [
        {
            **make_entry(row.token_id, row.score),
            "top_logprobs": [make_entry(*best) for best in row.top[:top]],
        }
        for row in iter_scores(event.token_ids, scores, scores["offsets"])
    ]
