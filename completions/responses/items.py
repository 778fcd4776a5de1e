"""Items of the Responses API from the deltas of one message, and the events of their stream.

The names of items, parts and events are those of OpenAI's API
(https://platform.openai.com/docs/api-reference/responses-streaming).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from completions.chat.delta import CallDelta, Delta
from completions.models.conversations import Item, make_item_id

Event = dict[str, Any]
"""An event of a stream, without its number."""


@dataclass(frozen=True, slots=True)
class ItemKind:
    """A type of item that a model writes."""

    type: str
    prefix: str
    """What the ids of such items begin with."""
    event: str
    """What the names of the events begin with whose deltas make up its text."""
    key: str
    """The key of its text, in the item or in its only part, and in the event that ends it."""
    fields: Mapping[str, object]
    """The other fields that each new item has."""
    part: Mapping[str, object] | None = None
    """The part that has its text, while that is empty; None if the item itself has it."""


REASONING: Final = ItemKind(
    "reasoning",
    "rs_",
    "response.reasoning_text",
    "text",
    {"summary": [], "content": []},
    {"type": "reasoning_text", "text": ""},
)
MESSAGE: Final = ItemKind(
    "message",
    "msg_",
    "response.output_text",
    "text",
    {"role": "assistant", "content": []},
    {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
)
FUNCTION_CALL: Final = ItemKind(
    "function_call", "fc_", "response.function_call_arguments", "arguments", {"arguments": ""}
)
CUSTOM_CALL: Final = ItemKind(
    "custom_tool_call", "ctc_", "response.custom_tool_call_input", "input", {"input": ""}
)


class ItemWriter:
    """Writer of a message's items as its deltas come. `items` has those that are complete."""

    def __init__(self, response_id: str, make_call_id: Callable[[int, int], str]) -> None:
        """`make_call_id` returns the id of a call by choice and index."""
        self._response_id = response_id
        self._make_call_id = make_call_id
        self.items: list[Item] = []
        self._kind: ItemKind | None = None
        self._item: dict[str, object] = {}
        self._texts: list[str] = []
        self._logprobs: list[object] = []
        self._held: Sequence[object] = ()
        """Log probabilities of tokens whose text has not come yet."""

    def push(self, delta: Delta, logprobs: Sequence[object] = ()) -> Iterator[Event]:
        """Yield the events of a delta, whose tokens have these log probabilities."""
        if delta.reasoning:
            yield from self._add_text(REASONING, delta.reasoning)
        if delta.content:
            logprobs, self._held = [*self._held, *logprobs], ()
            yield from self._add_text(MESSAGE, delta.content, logprobs)
        elif delta.reasoning or delta.calls:
            self._held = ()
        elif self._kind in (None, MESSAGE):
            self._held = [*self._held, *logprobs]
        for piece in delta.calls:
            if piece.name is not None:
                yield from self._begin_call(piece)
            if piece.arguments:
                yield self._add(piece.arguments)

    def finish(self, status: str) -> Iterator[Event]:
        """Yield the events that end the last item. An answer without any item is an empty
        message."""
        if self._kind is None and not self.items:
            yield from self._begin(MESSAGE)
        yield from self._end(status)

    @property
    def _place(self) -> Event:
        """The keys with which the events inside an item name it."""
        place: Event = {"item_id": self._item["id"], "output_index": len(self.items)}
        if self._kind is not None and self._kind.part is not None:
            place["content_index"] = 0
        return place

    def _add_text(
        self, kind: ItemKind, text: str, logprobs: Sequence[object] | None = None
    ) -> Iterator[Event]:
        if self._kind is not kind:
            yield from self._begin(kind)
        yield self._add(text, logprobs)

    def _begin_call(self, piece: CallDelta) -> Iterator[Event]:
        call_id = self._make_call_id(0, piece.index)
        kind = CUSTOM_CALL if piece.is_custom else FUNCTION_CALL
        yield from self._begin(kind, call_id=call_id, name=piece.name)

    def _begin(self, kind: ItemKind, **fields: object) -> Iterator[Event]:
        yield from self._end("completed")
        item_id = make_item_id(kind.prefix, len(self.items), self._response_id)
        self._kind, self._texts, self._logprobs = kind, [], []
        self._item = {
            "id": item_id,
            "type": kind.type,
            "status": "in_progress",
            **fields,
            **kind.fields,
        }
        yield {
            "type": "response.output_item.added",
            "output_index": len(self.items),
            "item": self._item,
        }
        if kind.part is not None:
            yield {"type": "response.content_part.added", **self._place, "part": kind.part}

    def _add(self, text: str, logprobs: Sequence[object] | None = None) -> Event:
        assert self._kind is not None
        self._texts.append(text)
        event = {"type": f"{self._kind.event}.delta", **self._place, "delta": text}
        if logprobs is not None:
            self._logprobs += logprobs
            event["logprobs"] = logprobs
        return event

    def _end(self, status: str) -> Iterator[Event]:
        kind, place = self._kind, self._place if self._kind else {}
        if kind is None:
            return
        text = "".join(self._texts)
        done = {"type": f"{kind.event}.done", **place, kind.key: text}
        if kind.part is None:
            ended: dict[str, object] = {kind.key: text}
            yield done
        else:
            part = {**kind.part, "text": text}
            if kind is MESSAGE:
                part["logprobs"] = done["logprobs"] = [*self._logprobs, *self._held]
            ended = {"content": [part]}
            yield done
            yield {"type": "response.content_part.done", **place, "part": part}
        item = {**self._item, **ended, "status": status}
        yield {
            "type": "response.output_item.done",
            "output_index": place["output_index"],
            "item": item,
        }
        self.items.append(item)
        self._kind, self._held = None, ()
