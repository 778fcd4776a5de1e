"""The objects of Anthropic's Messages API from a job's events: messages, the events of streams."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import orjson

from completions.chat.delta import Delta
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, EndEvent
from completions.responses import sse
from completions.responses.chat import ChatResponseContext, CollectedChat, Message
from completions.responses.choice_record import ABORT, LENGTH, ChoiceRecord
from completions.responses.completion import Chunks, CollectedResponse
from completions.responses.usage import make_usage

Event = dict[str, Any]
Block = dict[str, Any]
_STOP_REASONS: Final[Mapping[str | None, str | None]] = {
    None: None,
    "stop": "end_turn",
    "tool_calls": "tool_use",
    LENGTH: "max_tokens",
    ABORT: "pause_turn",  # sent back, it is continued
}
"""By the finish reason of a chat."""


_THINKING, _TEXT, _TOOL_USE = "thinking", "text", "tool_use"
_KINDS: Final[Mapping[str, tuple[str, str, Block]]] = {
    _THINKING: ("thinking_delta", "thinking", {"thinking": "", "signature": ""}),
    _TEXT: ("text_delta", "text", {"text": ""}),
    _TOOL_USE: ("input_json_delta", "partial_json", {"input": {}}),
}
"""By type of block: the type of its deltas, the key of their texts, and the fields of a new one."""


class BlockWriter:
    """Writer of a message's blocks as its deltas come. `blocks` has those that are complete."""

    def __init__(self, context: ChatResponseContext) -> None:
        self._context = context
        self.blocks: list[Block] = []
        self._kind = ""
        self._block: Block = {}
        self._texts: list[str] = []

    def push(self, delta: Delta) -> Iterator[Event]:
        """Yield the events of a delta."""
        for kind, text in ((_THINKING, delta.reasoning), (_TEXT, delta.content)):
            if text:
                if self._kind != kind:
                    yield from self._begin(kind)
                yield self._add(kind, text)
        for piece in delta.calls:
            if piece.name is not None:
                call_id = self._context.make_call_id(0, piece.index)
                yield from self._begin(_TOOL_USE, id=call_id, name=piece.name)
            if piece.arguments:
                yield self._add(_TOOL_USE, piece.arguments)

    def finish(self) -> Iterator[Event]:
        """Yield the events that end the last block."""
        if not self._kind:
            return
        text = "".join(self._texts)
        if self._kind == _TOOL_USE:
            ended: Block = {"input": _read_input(text)}
        elif self._kind == _THINKING:
            ended = {"thinking": text, "signature": _sign(text)}
            yield self._make_delta("signature_delta", "signature", ended["signature"])
        else:
            ended = {"text": text}
        yield {"type": "content_block_stop", "index": len(self.blocks)}
        self.blocks.append({**self._block, **ended})
        self._kind = ""

    def _begin(self, kind: str, **fields: Any) -> Iterator[Event]:
        yield from self.finish()
        self._kind, self._texts = kind, []
        self._block = {"type": kind, **fields, **_KINDS[kind][2]}
        index = len(self.blocks)
        yield {"type": "content_block_start", "index": index, "content_block": self._block}

    def _add(self, kind: str, text: str) -> Event:
        self._texts.append(text)
        return self._make_delta(*_KINDS[kind][:2], text)

    def _make_delta(self, kind: str, key: str, text: str) -> Event:
        delta = {"type": kind, key: text}
        return {"type": "content_block_delta", "index": len(self.blocks), "delta": delta}


def _read_input(text: str) -> dict[str, object]:
    """Return the input of a call; empty if `max_tokens` cut it, since it has to be an object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _sign(thoughts: str) -> str:
    """Return a digest. Clients send it back, and some drop thoughts without one."""
    return hashlib.sha256(thoughts.encode()).hexdigest()


class MessageContext(ChatResponseContext, frozen=True, omit_defaults=True):
    """The response context of a message."""

    id_prefix: ClassVar[str] = "msg_"
    object: ClassVar[str] = "message"
    path: ClassVar[str] = "/v1/messages"
    call_prefix: ClassVar[str] = "toolu_"

    @property
    def location(self) -> str:
        """Empty: the API has no route that returns a message again."""
        return ""

    def make_collected(self) -> CollectedResponse:
        return CollectedMessage(self)

    def make_chunks(self) -> Chunks:
        return MessageEvents(self)

    def make_message(self, content: Sequence[Block], **ending: Any) -> dict[str, Any]:
        """Return the message object. `ending` has what a stream says at its end."""
        start = {"id": self.id, "type": "message", "role": "assistant", "model": self.model}
        return {**start, "content": list(content), **ending}

    def make_ending(
        self, record: ChoiceRecord, reason: str | None, usage: Usage | None, thinking: int = 0
    ) -> dict[str, Any]:
        """Return why a message ended, from the finish reason of a chat, and its usage, of which
        `thinking` tokens are thoughts. Cached tokens are no input tokens."""
        counted = Usage(self.prompt_lengths[0], len(record.token_ids), record.cached_tokens)
        used = usage or counted  # as far as the events say
        matched = record.matched_stop if reason == "stop" else None
        stop = matched if isinstance(matched, str) else None
        cost = make_usage(used, thinking, self.prices)
        return {
            "stop_reason": _STOP_REASONS[reason] if stop is None else "stop_sequence",
            "stop_sequence": stop,
            "usage": {
                "input_tokens": used.prompt_tokens - used.cached_tokens,
                "cache_creation_input_tokens": 0,  # the cache is free of charge
                "cache_read_input_tokens": used.cached_tokens,
                "output_tokens": used.completion_tokens,
                "output_tokens_details": {"thinking_tokens": thinking},
                **{name: cost[name] for name in ("cost", "cost_details") if name in cost},
            },
        }


class CollectedMessage(CollectedChat):
    """Collector of a job's events into a message."""

    _context: MessageContext

    def make_response(self, usage: Usage | None) -> dict[str, object]:
        (record,) = self.choices.records
        delta, reason = self.release(record)
        writer = BlockWriter(self._context)
        for _ in (*writer.push(delta), *writer.finish()):
            pass
        thinking = self.count_reasoning_tokens()
        ending = self._context.make_ending(record, reason, usage, thinking)
        return self._context.make_message(writer.blocks, **ending)


class MessageEvents(Chunks):
    """Writer of the events of a stream. They are numbered from 1, though they do not say so."""

    keep_alive = sse.make_frame({"type": "ping"}, event="ping")
    done = ()
    _context: MessageContext

    def __init__(self, context: MessageContext) -> None:
        super().__init__(context)
        self._message = Message(context)
        self._blocks = BlockWriter(context)

    def make_start(self) -> Iterator[tuple[int, Event]]:
        """Yield the message without content. How much of the prompt is cached is not known yet."""
        (record,) = self.choices.records
        ending = self._context.make_ending(record, None, None)
        message = self._context.make_message((), **ending)
        yield self._number_chunk({"type": "message_start", "message": message})

    def make_chunks(self, events: Sequence[ChoiceEvent]) -> Iterator[tuple[int, Event]]:
        for event in events:
            self.choices.add(event)
            yield from map(self._number_chunk, self._blocks.push(self._message.push(event)))

    def make_ending(self, end: EndEvent) -> Iterator[tuple[int, Event]]:
        yield from map(self._number_chunk, self._blocks.finish())
        (record,) = self.choices.records
        reason = self._message.finish_reason(record.finish_reason)
        thinking = self._message.reasoning_tokens
        ending = self._context.make_ending(record, reason, end.usage, thinking)
        usage = ending.pop("usage")
        yield self._number_chunk({"type": "message_delta", "delta": ending, "usage": usage})
        yield self._number_chunk({"type": "message_stop"})

    def make_meta(self, meta: Mapping[str, object]) -> Event:
        return {"type": "quire:meta", "meta": meta}

    def make_frame(self, chunk: Event, event_id: int | None = None) -> bytes:
        return sse.make_frame(chunk, event_id, chunk["type"])

    def _number_chunk(self, chunk: Event) -> tuple[int, Event]:
        self._number += 1
        return self._number, chunk
