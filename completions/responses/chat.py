"""OpenAI's chat completion objects from a job's events: messages, deltas, polled states."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

from completions.chat.parser import CallDelta, Delta, OutputParser
from completions.chat.thinking import Marks, ThinkingParser, ThoughtCounter
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool
from completions.jobs.events import ChoiceEvent
from completions.responses import token_texts
from completions.responses.choice_record import ABORT, ChoiceRecord
from completions.responses.completion import Chunks, Collected, View
from completions.responses.logprobs import chat_logprobs


@dataclass(frozen=True, slots=True)
class ChatView(View):
    """The view of a chat completion."""

    id_prefix: ClassVar[str] = "chatcmpl-"
    object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    path: ClassVar[str] = "/v1/chat/completions"

    tool_format: str | None = None
    """The format of tool calls, if the answer may have any."""
    tools: Sequence[tuple[str, Mapping[str, Any] | None]] = ()
    """Names and schemas of tools, if the format's parser needs them."""
    thinking_marks: tuple[str, str] | None = None
    """The marks around thoughts, if the answer may have any and they are separate."""
    thinking_open: bool = False
    hidden: Sequence[str] = ()
    """Special tokens that are removed from the text."""
    stream_reasoning: bool = True
    alternatives: int | None = None
    """Likeliest tokens listed at each position; None for no log probabilities."""

    def collected(self) -> "ChatCollected":
        return ChatCollected(self)

    def chunks(self) -> "ChatChunks":
        return ChatChunks(self)

    def parser(self) -> OutputParser:
        """A parser for one choice's text."""
        thinking = calls = None
        if self.thinking_marks is not None:
            marks = Marks(*self.thinking_marks)
            thinking = ThinkingParser(marks, is_open=self.thinking_open)
        if self.tool_format is not None:
            tools = [Tool(name, None, parameters) for name, parameters in self.tools]
            calls = TOOL_FORMATS[self.tool_format].parser(tools)
        return OutputParser(thinking, calls, self.hidden)

    def thought_counter(self) -> ThoughtCounter | None:
        """A counter for one choice's thoughts; None if it cannot have any."""
        if self.thinking_marks is None:
            return None
        marks = Marks(*self.thinking_marks)
        return ThoughtCounter(marks, is_open=self.thinking_open, hidden=self.hidden)

    def logprobs_of(self, event: ChoiceEvent) -> dict[str, Any] | None:
        """Log probabilities of an event's tokens; None unless the request asks for them."""
        scores = event.extras.get("logprobs")
        if self.alternatives is None or scores is None:
            return None
        texts = token_texts.of(self.served_model)
        return chat_logprobs(event.token_ids, scores, self.alternatives, texts)

    def call_id(self, choice: int, index: int) -> str:
        """The id of a tool call: the same in a stream, a resumed stream and an answer."""
        digest = sha256(f"{self.id}/{choice}/{index}".encode()).hexdigest()
        return f"call_{digest[:24]}"


class _Message:
    """One choice's message, as its events come."""

    def __init__(self, view: ChatView) -> None:
        self._parser = view.parser()
        self._thoughts = view.thought_counter()
        self._model = view.served_model
        self.ended = False

    def push(self, event: ChoiceEvent) -> Delta:
        """What the message gains. The event with the finish reason releases what was held back."""
        if self._thoughts is not None:
            self._thoughts.push(map(token_texts.of(self._model).raw, event.token_ids))
        delta = self._parser.push(event.text)
        if event.finish_reason is not None and not self.ended:
            self.ended = True
            _join(delta, self._parser.finish())
        return delta

    @property
    def reasoning_tokens(self) -> int:
        return self._thoughts.count if self._thoughts is not None else 0

    def finish_reason(self, given: str | None) -> str | None:
        """`tool_calls` if the model stopped by itself after complete calls, else `given`."""
        return "tool_calls" if given == "stop" and self._parser.has_called else given

    @property
    def thinking(self) -> bool:
        return self._parser.thinking and not self.ended


def _call(view: ChatView, choice: int, piece: CallDelta) -> dict[str, Any]:
    """A call without its arguments."""
    function = {"name": piece.name, "arguments": ""}
    return {"id": view.call_id(choice, piece.index), "type": "function", "function": function}


def _join(delta: Delta, more: Delta) -> None:
    delta.reasoning += more.reasoning
    delta.content += more.content
    delta.calls += more.calls


class ChatCollected(Collected):
    """Folds a job's events into messages."""

    _view: ChatView

    def __init__(self, view: ChatView) -> None:
        super().__init__(view)
        self._messages = [_Message(view) for _ in range(view.num_choices)]
        self._gained = [Delta() for _ in range(view.num_choices)]

    def add(self, events: Sequence[ChoiceEvent]) -> None:
        super().add(events)
        for event in events:
            _join(self._gained[event.index], self._messages[event.index].push(event))

    def reasoning_tokens(self) -> int:
        return sum(message.reasoning_tokens for message in self._messages)

    def choice(self, record: ChoiceRecord) -> dict[str, Any]:
        index = record.index
        choice = super().choice(record)
        message, gained = self._messages[index], self._gained[index]
        if not message.ended:  # cancelled: release what was held back
            _join(gained, message.push(ChoiceEvent(0, index, [], "", ABORT, None)))
        del choice["text"]
        return {
            "index": index,
            "message": _message(self._view, index, gained),
            **choice,
            "logprobs": self._view.logprobs_of(record.as_event()),
            "finish_reason": message.finish_reason(choice["finish_reason"]),
        }


def _message(view: ChatView, index: int, gained: Delta) -> dict[str, Any]:
    """The message object. Its content is null if it has only calls."""
    message: dict[str, Any] = {"role": "assistant", "content": gained.content, "refusal": None}
    if view.thinking_marks is not None:
        message["reasoning_content"] = gained.reasoning or None
    calls: list[dict[str, Any]] = []
    for piece in gained.calls:
        if piece.name is not None:
            calls.append(_call(view, index, piece))
        calls[piece.index]["function"]["arguments"] += piece.arguments
    if calls:
        message["tool_calls"] = calls
        message["content"] = gained.content or None
    return message


class ChatChunks(Chunks):
    """Turns a job's events into the chunks of contract 4.3. An event may yield several or none."""

    _view: ChatView

    def __init__(self, view: ChatView) -> None:
        super().__init__(view)
        self._messages = [_Message(view) for _ in range(view.num_choices)]
        self._held = ["" for _ in range(view.num_choices)]
        self._begun: set[int] = set()

    def reasoning_tokens(self, index: int | None = None) -> int:
        messages = self._messages if index is None else [self._messages[index]]
        return sum(message.reasoning_tokens for message in messages)

    def choice_objects(self, event: ChoiceEvent) -> Iterator[dict[str, Any]]:
        """The first choice object has the role, the last one the finish reason."""
        index = event.index
        gained = self._messages[index].push(event)
        written = self._writers[index].write(event)
        del written["text"]
        written["logprobs"] = self._view.logprobs_of(event)
        if index not in self._begun:
            self._begun.add(index)
            yield _empty(index, {"role": "assistant", "content": ""})
        ends = ("finish_reason", "matched_stop", "meta_info")
        end = {name: written.pop(name) for name in ends if name in written}
        deltas = self._deltas(index, gained)
        if not deltas and (written["logprobs"] or ("token_ids" in written and event.token_ids)):
            deltas = [{}]
        for delta in deltas:
            yield {**_empty(index, delta), **written}
            written = {}
        if event.finish_reason is not None:
            end["finish_reason"] = self._messages[index].finish_reason(event.finish_reason)
            yield {**_empty(index, {}), **end}

    def hidden_states(self, record: ChoiceRecord) -> dict[str, Any]:
        return _empty(record.index, {"hidden_states": record.hidden_states})

    def _deltas(self, index: int, gained: Delta) -> list[dict[str, Any]]:
        """Deltas of the text, then of the calls. A call's first delta has only its name."""
        text: dict[str, Any] = {}
        reasoning = self._held[index] + gained.reasoning
        self._held[index] = ""
        if self._messages[index].thinking and not self._view.stream_reasoning:
            self._held[index] = reasoning
        elif reasoning:
            text["reasoning_content"] = reasoning
        if gained.content:
            text["content"] = gained.content
        calls: list[dict[str, Any]] = []
        for piece in gained.calls:
            if piece.name is not None:
                calls.append({"index": piece.index, **_call(self._view, index, piece)})
            if piece.arguments:
                function = {"arguments": piece.arguments}
                calls.append({"index": piece.index, "function": function})
        return [*([text] if text else ()), *({"tool_calls": [call]} for call in calls)]


def _empty(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    """The choice object of a chunk that has only a delta."""
    return {
        "index": index, "delta": delta, "logprobs": None, "finish_reason": None,
        "matched_stop": None,
    }  # fmt: skip
