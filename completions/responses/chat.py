"""OpenAI's chat completion objects from a job's events: messages, deltas, polled states."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

from django.conf import settings

from completions.chat.call_parser import CallParser
from completions.chat.delta import CallDelta, Delta
from completions.chat.parser import OutputParser
from completions.chat.reasoning import ReasoningCounter, ReasoningParser, ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import CUSTOM, FUNCTION, INPUT, Tool
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent
from completions.responses import token_texts
from completions.responses.choice_record import ABORT, ChoiceRecord
from completions.responses.completion import Chunks, CollectedResponse, ResponseContext
from completions.responses.logprobs import make_chat_logprobs

_BY_TOKEN = ("token_ids", "sampling_support")
"""Keys of choices that belong to tokens, whether or not these have text."""


class OfferedTool(NamedTuple):
    """What the parser of calls needs of a tool. JSON has its values, as an array."""

    name: str
    parameters: Mapping[str, object] | None
    is_custom: bool = False


class ChatResponseContext(ResponseContext, frozen=True, omit_defaults=True):
    """The response context of a chat completion."""

    id_prefix: ClassVar[str] = "chatcmpl-"
    object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    path: ClassVar[str] = "/v1/chat/completions"
    call_prefix: ClassVar[str] = "call_"
    """What the ids of tool calls begin with."""

    tool_format: str | None = None
    """The format of tool calls, if the answer may have any."""
    tools: Sequence[OfferedTool] = ()
    calls_first: bool = False
    """Whether calls come before all text, or not at all."""
    think_tags: ThinkTags | None = None
    """The tags around reasoning, if the answer may have any and it is separate."""
    is_reasoning_open: bool = False
    reasoning_lead: str = ""
    """The text after which more reasoning may begin; empty where there is one piece of it."""
    hidden: Sequence[str] = ()
    """Special tokens that are removed from the text."""
    unseen: Sequence[str] = ()
    """Texts that are removed from the content: those around it in the model's format."""
    around: tuple[str, str] = ("", "")
    """Texts that are removed from the beginning and the end of the content."""
    stream_reasoning: bool = True
    alternatives: int | None = None
    """Likeliest tokens listed at each position; None for no log probabilities."""

    def make_collected(self) -> CollectedResponse:
        return CollectedChat(self)

    def make_chunks(self) -> Chunks:
        return ChatChunks(self)

    def make_parser(self) -> OutputParser:
        """Return a parser for one choice's text."""
        thinking = calls = None
        if self.think_tags is not None:
            thinking = ReasoningParser(
                self.think_tags,
                is_open=self.is_reasoning_open,
                calls=self._list_call_starts(),
                lead=self.reasoning_lead,
            )
        if self.tool_format is not None:
            tools = [
                Tool(each.name, None, each.parameters, is_custom=each.is_custom)
                for each in self.tools
            ]
            form = TOOL_FORMATS[self.tool_format]
            calls = CallParser(form, tools, only_first=self.calls_first)
        return OutputParser(thinking, calls, self.hidden, self.unseen, self.around)

    def make_reasoning_counter(self) -> ReasoningCounter | None:
        """Make a counter for one choice's reasoning; None if it cannot have any."""
        if self.think_tags is None:
            return None
        return ReasoningCounter(
            self.think_tags,
            is_open=self.is_reasoning_open,
            hidden=self.hidden,
            calls=self._list_call_starts(),
            lead=self.reasoning_lead,
        )

    def _list_call_starts(self) -> Sequence[str]:
        """Return the texts that begin a call and may end the reasoning."""
        form = TOOL_FORMATS[self.tool_format] if self.tool_format else None
        if form is None or not form.ends_reasoning:
            return ()
        return form.list_triggers([tool.name for tool in self.tools])

    def make_logprobs(self, event: ChoiceEvent) -> dict[str, Any] | None:
        """Return log probabilities of an event's tokens; None unless the request asks for them."""
        scores = event.extras.get("logprobs")
        if self.alternatives is None or scores is None:
            return None
        texts = token_texts.load_token_texts(self.served_model)
        return make_chat_logprobs(event.token_ids, scores, self.alternatives, texts)

    def make_call_id(self, choice: int, index: int) -> str:
        """Return the id of a tool call: the same in a stream, a resumed stream and an answer."""
        digest = sha256(f"{self.id}/{choice}/{index}".encode()).hexdigest()
        return f"{self.call_prefix}{digest[:24]}"


class Message:
    """One choice's message, as its events come."""

    def __init__(self, context: ChatResponseContext) -> None:
        self._parser = context.make_parser()
        self._reasoning = context.make_reasoning_counter()
        self._model = context.served_model
        self.ended = False

    def push(self, event: ChoiceEvent) -> Delta:
        """Return what the message gains. The event with the finish reason releases what was held
        back."""
        if self._reasoning is not None:
            self._reasoning.push(
                map(token_texts.load_token_texts(self._model).get_bytes, event.token_ids)
            )
        delta = self._parser.push(event.text)
        if event.finish_reason is not None and not self.ended:
            self.ended = True
            _join(delta, self._parser.finish(is_cut=event.finish_reason != "stop"))
        return delta

    @property
    def reasoning_tokens(self) -> int:
        return self._reasoning.count if self._reasoning is not None else 0

    def finish_reason(self, reason: str | None) -> str | None:
        """`tool_calls` if the model stopped by itself after complete calls, else `reason`."""
        return "tool_calls" if reason == "stop" and self._parser.has_called else reason

    @property
    def is_reasoning(self) -> bool:
        return self._parser.is_reasoning and not self.ended


def _make_call(context: ChatResponseContext, choice: int, piece: CallDelta) -> dict[str, object]:
    """Return a call without its arguments or its input."""
    kind, text = _name_parts(piece)
    id = context.make_call_id(choice, piece.index)
    return {"id": id, "type": kind, kind: {"name": piece.name, text: ""}}


def _name_parts(piece: CallDelta) -> tuple[str, str]:
    """Return the type of a call, which is also a key of it, and the key of its text."""
    return (CUSTOM, INPUT) if piece.is_custom else (FUNCTION, "arguments")


def _join(delta: Delta, more: Delta) -> None:
    delta.reasoning += more.reasoning
    delta.content += more.content
    delta.calls += more.calls


class CollectedChat(CollectedResponse):
    """Collector of a job's events into messages."""

    _context: ChatResponseContext

    def __init__(self, context: ChatResponseContext) -> None:
        super().__init__(context)
        self._messages = [Message(context) for _ in range(context.num_choices)]
        self._gained = [Delta() for _ in range(context.num_choices)]

    def add(self, events: Sequence[ChoiceEvent]) -> None:
        super().add(events)
        for event in events:
            _join(self._gained[event.index], self._messages[event.index].push(event))

    def count_reasoning_tokens(self) -> int:
        return sum(message.reasoning_tokens for message in self._messages)

    def _make_body(self, usage: Usage | None, ended: bool) -> dict[str, object]:
        """Add the log probabilities of the one prompt, where vLLM has them in a chat."""
        body = super()._make_body(usage, ended)
        if ended and self._context.prompt_logprobs is not None:
            body["prompt_logprobs"] = self.make_prompt_logprobs(self.choices.records[0])
        return body

    def release(self, record: ChoiceRecord) -> tuple[Delta, str | None]:
        """Return a choice's message, with what was held back if it was cancelled, and why it
        ended."""
        message, delta = self._messages[record.index], self._gained[record.index]
        if not message.ended:
            _join(delta, message.push(ChoiceEvent(record.index, [], "", ABORT)))
        return delta, message.finish_reason(record.finish_reason or ABORT)

    def make_choice(self, record: ChoiceRecord) -> dict[str, object]:
        index = record.index
        choice = super().make_choice(record)
        choice.pop("prompt_logprobs", None)
        delta, reason = self.release(record)
        del choice["text"]
        return {
            "index": index,
            "message": _make_message(self._context, index, delta),
            **choice,
            "logprobs": self._context.make_logprobs(record.to_event()),
            "finish_reason": reason,
        }


def _make_message(context: ChatResponseContext, index: int, delta: Delta) -> dict[str, object]:
    """Return the message object. Its content is null if it has only calls."""
    message: dict[str, object] = {"role": "assistant", "content": delta.content, "refusal": None}
    if context.think_tags is not None:
        message |= dict.fromkeys(settings.REASONING_FIELDS, delta.reasoning or None)
    calls: list[dict[str, Any]] = []
    for piece in delta.calls:
        if piece.name is not None:
            calls.append(_make_call(context, index, piece))
        kind, text = _name_parts(piece)
        calls[piece.index][kind][text] += piece.arguments
    if calls:
        message["tool_calls"] = calls
        message["content"] = delta.content or None
    return message


class ChatChunks(Chunks):
    """Writer of chat.completion.chunk objects from a job's events. An event may yield several or
    none."""

    _context: ChatResponseContext

    def __init__(self, context: ChatResponseContext) -> None:
        super().__init__(context)
        self._messages = [Message(context) for _ in range(context.num_choices)]
        self._held = ["" for _ in range(context.num_choices)]
        self._begun: set[int] = set()

    def count_reasoning_tokens(self, index: int | None = None) -> int:
        messages = self._messages if index is None else [self._messages[index]]
        return sum(message.reasoning_tokens for message in messages)

    def make_choices(self, event: ChoiceEvent) -> Iterator[dict[str, object]]:
        """Yield the first choice object has the role, the last one the finish reason."""
        index = event.index
        gain = self._messages[index].push(event)
        fields = self._writers[index].write(event)
        del fields["text"]
        fields["logprobs"] = self._context.make_logprobs(event)
        if index not in self._begun:
            self._begun.add(index)
            yield _make_empty(index, {"role": "assistant", "content": ""})
        ends = ("finish_reason", "matched_stop", "meta_info")
        end = {name: fields.pop(name) for name in ends if name in fields}
        deltas = self._make_deltas(index, gain)
        has_tokens = event.token_ids and not fields.keys().isdisjoint(_BY_TOKEN)
        if not deltas and (fields["logprobs"] or has_tokens):
            deltas = [{}]
        for delta in deltas:
            yield {**_make_empty(index, delta), **fields}
            fields = {}
        if event.finish_reason is not None:
            end["finish_reason"] = self._messages[index].finish_reason(event.finish_reason)
            yield {**_make_empty(index, {}), **end}

    def make_hidden_states(self, record: ChoiceRecord) -> dict[str, object]:
        return _make_empty(record.index, {"hidden_states": record.hidden_states})

    def _make_deltas(self, index: int, gain: Delta) -> list[dict[str, object]]:
        """Return deltas of the text, then of the calls. A call's first delta has only its name."""
        text: dict[str, object] = {}
        reasoning = self._held[index] + gain.reasoning
        self._held[index] = ""
        if self._messages[index].is_reasoning and not self._context.stream_reasoning:
            self._held[index] = reasoning
        elif reasoning:
            text |= dict.fromkeys(settings.REASONING_FIELDS, reasoning)
        if gain.content:
            text["content"] = gain.content
        calls: list[dict[str, object]] = []
        for piece in gain.calls:
            if piece.name is not None:
                calls.append({"index": piece.index, **_make_call(self._context, index, piece)})
            if piece.arguments:
                kind, name = _name_parts(piece)
                calls.append({"index": piece.index, kind: {name: piece.arguments}})
        return [*([text] if text else ()), *({"tool_calls": [call]} for call in calls)]


def _make_empty(index: int, delta: dict[str, object]) -> dict[str, object]:
    """Return the choice object of a chunk that has only a delta."""
    return {
        "index": index,
        "delta": delta,
        "logprobs": None,
        "finish_reason": None,
        "matched_stop": None,
    }
