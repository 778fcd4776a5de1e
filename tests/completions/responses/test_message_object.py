"""Events to messages: blocks and their events, the same however a job's events are cut."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from completions.chat.reasoning import ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from completions.contract.usage import Usage
from completions.exceptions import APIError
from completions.jobs.events import ChoiceEvent, EndEvent, JobError
from completions.responses import token_texts
from completions.responses.message_object import MessageContext
from completions.responses.whole_response import make_whole_response
from tests.completions.responses.test_chat import Texts, cut

CALL = TOOL_FORMATS["hermes"].write(ToolCall("f", {"a": [1, "é"]}))
TEXT = f"<think>a b</think>\nSo: {CALL}{CALL}"
END = EndEvent(9, "completed", None, Usage(3, 7, 2))
THINKING: dict[str, Any] = {
    "think_tags": ThinkTags("<think>", "</think>"), "tool_format": "hermes",
}  # fmt: skip
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(autouse=True, scope="module")
def _texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_texts, "load_token_texts", lambda model: Texts())
        yield


def make_view(**changes: Any) -> MessageContext:
    fields = {"id": "msg_1", "model": "m", "created": 5, "n": 1, "prompt_lengths": [3]}
    return MessageContext(**{**fields, **changes})


def answer(view: MessageContext, events: list[ChoiceEvent]) -> dict[str, Any]:
    collected = view.make_collected()
    collected.add(events)
    return collected.make_response(END.usage)


def stream(
    view: MessageContext, events: list[ChoiceEvent], end: EndEvent = END
) -> list[dict[str, Any]]:
    chunks = view.make_chunks()
    numbered = [*chunks.make_start(), *chunks.make_chunks(events), *chunks.make_end(end)]
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    for _, event in numbered:
        assert chunks.make_frame(event).startswith(b"event: %b\ndata: {" % event["type"].encode())
    return [event for _, event in numbered]


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the message together as a client does."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = orjson.loads(orjson.dumps(event["message"]))
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(orjson.loads(orjson.dumps(event["content_block"])))
        elif kind == "content_block_delta":
            (_, name), (key, text) = event["delta"].items()
            index = event["index"]
            assert index == len(message["content"]) - 1
            if name == "input_json_delta":
                inputs[index] = inputs.get(index, "") + text
            else:
                message["content"][index][key] += text
        elif kind == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    for index, text in inputs.items():
        try:
            message["content"][index]["input"] = orjson.loads(text)
        except orjson.JSONDecodeError:
            message["content"][index]["input"] = {}
    return message


def test_a_plain_answer_and_its_events() -> None:
    message = answer(make_view(), cut("Hello", 2))
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    events = stream(make_view(), cut("Hello", 2))
    assert [event["type"] for event in events] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    begun = events[0]["message"]
    assert (begun["content"], begun["stop_reason"]) == ([], None)
    assert begun["usage"]["input_tokens"] == 3
    assert fold(events) == message


@given(st.lists(st.integers(0, 300), max_size=9), st.sampled_from(["stop", "length", "abort"]))
def test_events_make_the_same_blocks_however_they_are_cut(places: list[int], finish: str) -> None:
    whole = answer(make_view(**THINKING), cut(TEXT, finish=finish))
    kinds = [block["type"] for block in whole["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    for message in (
        fold(stream(make_view(**THINKING), cut(TEXT, *places, finish=finish))),
        answer(make_view(**THINKING), cut(TEXT, *places, finish=finish)),
    ):
        assert {**message, "usage": 0} == {**whole, "usage": 0}  # the tokens are others


def test_the_official_client_knows_every_event() -> None:
    for event in stream(make_view(**THINKING), cut(TEXT, 9, 20)):
        assert EVENT.validate_python(event, strict=True).type == event["type"]
    message = Message.model_validate(answer(make_view(**THINKING), cut(TEXT)), strict=True)
    thinking, text, one, other = message.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, len(thinking.signature)) == ("a b", 64)
    assert text.type == "text"
    assert text.text == "So:"
    assert one.type == other.type == "tool_use"
    assert one.input == {"a": [1, "é"]}
    assert one.id.startswith("toolu_")
    assert one.id != other.id
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("finish", "matched", "reason", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", 2, "end_turn", None),
        ("stop", "###", "stop_sequence", "###"),
        ("length", None, "max_tokens", None),
        ("abort", None, "pause_turn", None),
    ],
)
def test_why_it_ended(finish: str, matched: Any, reason: str, sequence: str | None) -> None:
    events = [ChoiceEvent(0, [1], "Hi", finish, matched)]
    for message in (answer(make_view(), events), fold(stream(make_view(), events))):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_a_cut_call_has_an_empty_input() -> None:
    cut_call = TEXT[: TEXT.index("é")]
    view, events = make_view(**THINKING), cut(cut_call, finish="length")
    whole = answer(view, events)
    assert whole["stop_reason"] == "max_tokens"
    assert whole["content"][-1]["input"] == {}
    assert fold(stream(view, events))["content"] == whole["content"]


def test_an_input_of_large_numbers_can_be_written() -> None:
    call = TOOL_FORMATS["hermes"].write(ToolCall("f", {"a": 10**30}))
    message = answer(make_view(tool_format="hermes"), cut(call))
    assert orjson.loads(orjson.dumps(message))["content"][0]["input"] == {"a": 1e30}


def test_a_cancelled_answer_keeps_what_it_said() -> None:
    end = EndEvent(2, "cancelled", None, None)
    events = [ChoiceEvent(0, [1], "Hel", None, None, {"cached_tokens": 1})]
    message = fold(stream(make_view(), events, end))
    assert (message["content"], message["stop_reason"]) == (
        [{"type": "text", "text": "Hel"}],
        "pause_turn",
    )
    assert message["usage"]["output_tokens"] == 1
    assert message["usage"]["cache_read_input_tokens"] == 1


def test_a_failure_is_the_last_event() -> None:
    end = EndEvent(2, "failed", JobError("worker_error", "boom"), None)
    *_, event = stream(make_view(), [ChoiceEvent(0, [1], "Hel", None, None)], end)
    assert event["type"] == "error"
    assert event["error"]["type"] == "api_error"
    assert "boom" not in event["error"]["message"]
    job: Any = SimpleNamespace(id="msg_1", error=end.error)
    status, body = make_whole_response(job)
    assert (status, body["error"]["type"]) == (500, "api_error")


def test_there_is_no_event_that_the_client_does_not_read() -> None:
    chunks = make_view().make_chunks()
    assert chunks.keep_alive == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert list(chunks.done) == []
    error = chunks.make_error(APIError("server_shutting_down"))
    assert error["error"]["type"] == "overloaded_error"
