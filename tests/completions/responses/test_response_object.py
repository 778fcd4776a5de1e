"""Events to responses: items and their events, the same however a job's events are cut."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from completions.chat.reasoning import ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from completions.contract.usage import Usage
from completions.exceptions import APIError
from completions.jobs.events import ChoiceEvent, EndEvent, JobError
from completions.jobs.record import JobRecord
from completions.responses import token_texts
from completions.responses.chat import OfferedTool
from completions.responses.response_object import ItemsResponseContext
from tests.completions.responses.test_chat import Texts, cut

CALL = TOOL_FORMATS["hermes"].write(ToolCall("f", {"a": [1, "é"]}))
END = EndEvent(9, "completed", None, Usage(3, 7, 2))
SHOWN: dict[str, Any] = {
    "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "store": True,
}  # fmt: skip
HEX = "6f9619ff8b86d011b42d00c04fc964ff"


@pytest.fixture(autouse=True, scope="module")
def _texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_texts, "load_token_texts", lambda model: Texts())
        yield


def make_view(**changes: Any) -> ItemsResponseContext:
    fields = {
        "id": f"resp_{HEX}", "model": "m", "created": 5, "n": 1, "prompt_lengths": [3],
        "shown": SHOWN, "finished_at": 7,
    }  # fmt: skip
    return ItemsResponseContext(**{**fields, **changes})


THINKING = {"think_tags": ThinkTags("<think>", "</think>"), "tool_format": "hermes"}


def answer(view: ItemsResponseContext, events: list[ChoiceEvent]) -> dict[str, Any]:
    collected = view.make_collected()
    collected.add(events)
    return collected.make_response(END.usage)


def stream(
    view: ItemsResponseContext, events: list[ChoiceEvent], end: EndEvent = END
) -> list[dict[str, Any]]:
    chunks = view.make_chunks()
    numbered = [*chunks.make_start(), *chunks.make_chunks(events), *chunks.make_end(end)]
    assert [number for number, _ in numbered] == list(range(len(numbered)))
    assert all(event["sequence_number"] == number for number, event in numbered)
    for _, event in numbered:
        assert chunks.make_frame(event).startswith(b"event: %b\ndata: {" % event["type"].encode())
    return [event for _, event in numbered]


def fold(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the items together as a client does: from what is added, and from the deltas."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(orjson.loads(orjson.dumps(event["item"])))
        elif kind == "response.content_part.added":
            items[-1]["content"].append(dict(event["part"]))
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[-1]["id"]
            assert event["output_index"] == len(items) - 1
            if "content_index" in event:
                part = items[-1]["content"][event["content_index"]]
                part["text"] += event["delta"]
                if "logprobs" in part:
                    part["logprobs"] = [*part["logprobs"], *event["logprobs"]]
            else:
                key = "input" if "custom" in kind else "arguments"
                items[-1][key] += event["delta"]
        elif kind == "response.output_item.done":
            items[-1]["status"] = event["item"]["status"]
            for part, done in zip(
                items[-1].get("content", ()), event["item"].get("content", ()), strict=True
            ):
                if "logprobs" in part:  # tokens without text come with the end
                    assert done["logprobs"][: len(part["logprobs"])] == part["logprobs"]
                    part["logprobs"] = done["logprobs"]
            assert event["item"] == items[-1]
    return items


def test_a_plain_answer_and_its_events() -> None:
    body = answer(make_view(), cut("Hello", 2))
    (item,) = body["output"]
    assert item["id"] == f"msg_{HEX}_0"
    assert item["content"][0]["text"] == "Hello"
    assert (body["status"], item["status"], body["completed_at"]) == ("completed", "completed", 7)
    assert body["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    events = stream(make_view(), cut("Hello", 2))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added",
        "output_text.delta", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert events[-1]["response"] == body
    assert events[0]["response"]["status"] == "in_progress"


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    text = f"<think>a b</think>\nSo: {CALL}{CALL}"
    body = answer(make_view(**THINKING), cut(text))
    kinds = [(item["type"], item["status"]) for item in body["output"]]
    assert kinds == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "completed"),
    ]
    reasoning, message, one, other = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "a b"}]
    assert message["content"][0]["text"] == "So:"
    assert (one["name"], orjson.loads(one["arguments"])) == ("f", {"a": [1, "é"]})
    assert one["call_id"] != other["call_id"]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] >= 0


@given(st.lists(st.integers(0, 300), max_size=9), st.sampled_from(["stop", "length", "abort"]))
def test_events_make_the_same_items_however_they_are_cut(places: list[int], finish: str) -> None:
    text = f"<think>a b</think>\nSo: {CALL}{CALL}"
    whole = answer(make_view(**THINKING), cut(text, finish=finish))
    events = stream(make_view(**THINKING), cut(text, *places, finish=finish))
    assert fold(events) == whole["output"] == events[-1]["response"]["output"]
    again = answer(make_view(**THINKING), cut(text, *places, finish=finish))
    assert {**again, "usage": None} == {**whole, "usage": None}  # the tokens are others


@pytest.mark.wide
def test_a_custom_tool_has_an_input() -> None:
    text = TOOL_FORMATS["hermes"].write(ToolCall("patch", {"input": 'a\n"b"'}))
    tools = [OfferedTool("patch", {"properties": {"input": {"type": "string"}}}, is_custom=True)]
    view = make_view(tool_format="hermes", tools=tools)
    for places in ((), (9, 30), range(0, 90, 3)):
        events = stream(view, cut(text, *places))
        (item,) = fold(events)
        assert (item["type"], item["name"], item["input"]) == (
            "custom_tool_call",
            "patch",
            'a\n"b"',
        )
        assert item["id"] == f"ctc_{HEX}_0"
        for event in events:
            TypeAdapter(ResponseStreamEvent).validate_python(event)


def test_the_official_client_knows_every_event() -> None:
    """Its types are the schema: strictly, each event and each response is an instance."""
    text = f"<think>a b</think>\nSo: {CALL}"
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for view in (make_view(**THINKING), make_view(shown={**SHOWN, "background": True})):
        for event in stream(view, cut(text, 9, 20)):
            parsed = adapter.validate_python(event)
            assert parsed.type == event["type"]
            lax: Any = construct_type(type_=ResponseStreamEvent, value=event)
            assert type(lax) is type(parsed)
    Response.model_validate(answer(make_view(**THINKING), cut(text)))
    error = make_view().make_chunks().make_error(APIError("queue_timeout"))
    assert adapter.validate_python(error).type == "error"


def test_its_choice_is_that_of_a_chat() -> None:
    collected = make_view(**THINKING).make_collected()
    collected.add(cut(f"<think>a b</think>\nSo: {CALL}", 9, 20))
    message = collected.make_choice(collected.choices.records[0])["message"]
    assert (message["reasoning"], message["content"]) == ("a b", "So:")
    assert message["tool_calls"][0]["function"]["name"] == "f"


def test_an_answer_of_no_text_is_an_empty_message() -> None:
    events = stream(make_view(), cut(""))
    (item,) = fold(events)
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


@pytest.mark.parametrize(
    ("finish", "status", "reason", "last"),
    [
        ("length", "incomplete", {"reason": "max_output_tokens"}, "response.incomplete"),
        ("abort", "cancelled", None, "response.incomplete"),
    ],
)
def test_a_cut_answer_says_so(finish: str, status: str, reason: Any, last: str) -> None:
    *_, event = stream(make_view(), cut("Hel", finish=finish))
    body = event["response"]
    assert (event["type"], body["status"], body["incomplete_details"]) == (last, status, reason)
    assert body["output"][0]["status"] == "incomplete"


def test_a_failure_is_the_last_event() -> None:
    end = EndEvent(2, "failed", JobError("worker_error", "boom"), None)
    *_, event = stream(make_view(), [ChoiceEvent(0, [1], "Hel", None, None)], end)
    assert event["type"] == "response.failed"
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"]["code"] == "server_error"
    assert "boom" not in event["response"]["error"]["message"]


def test_a_stream_that_breaks_off_can_be_read_from_its_last_event() -> None:
    chunks = make_view().make_chunks()
    *_, (number, _) = [*chunks.make_start(), *chunks.make_chunks(cut("Hel", 1)[:1])]
    event = chunks.make_error(APIError("server_shutting_down"))
    assert event["sequence_number"] == number
    assert event["error"] == {
        "type": "server_error",
        "code": event["code"],
        "message": event["message"],
        "param": None,
    }


def record(state: Any, **more: Any) -> JobRecord:
    return JobRecord(
        id=f"resp_{HEX}", kind="background", state=state, model="m", organization_id=1,
        api_key_id=1, created=5.0, context=make_view(finished_at=None).to_json(), **more,
    )  # fmt: skip


def test_a_background_response_is_queued_then_in_progress() -> None:
    view = make_view(shown={**SHOWN, "background": True})
    kinds = [event["type"] for event in stream(view, cut("Hi"))[:4]]
    assert kinds == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
    ]
    for state, status in (("queued", "queued"), ("running", "in_progress")):
        polled = make_view().make_collected().make_polled(record(state))
        assert (polled["status"], polled["output"], polled["completed_at"]) == (status, [], None)


def test_a_polled_response_has_its_end() -> None:
    collected = make_view().make_collected()
    collected.add(cut("Hel")[:1])
    polled = collected.make_polled(record("completed", finished=8.5, usage=Usage(3, 7, 2)))
    assert (polled["status"], polled["completed_at"]) == ("completed", 8)
    failed = (
        make_view()
        .make_collected()
        .make_polled(record("failed", finished=8.5, error=JobError("queue_timeout")))
    )
    assert (failed["status"], failed["output"]) == ("failed", [])
    assert failed["error"]["code"] == "server_error"
    cancelled = make_view().make_collected()
    cancelled.add([ChoiceEvent(0, [1], "Hel", None, None)])
    body = cancelled.make_polled(record("cancelled", finished=8.5))
    assert (body["status"], body["output"][0]["content"][0]["text"]) == ("cancelled", "Hel")


SCORES = {"chosen": [-0.5], "offsets": [0], "top_ids": [[1]], "top": [[-0.5]]}


def test_logprobs_are_of_the_text_alone() -> None:
    class Named(Texts):
        def get_text(self, token_id: int) -> str:
            return str(token_id)

    pieces = ["<think>", "a b", "</think>", "\nyes", "!", ""]
    ends = [None] * (len(pieces) - 1) + ["stop"]
    events = [
        ChoiceEvent(0, [i], pieces[i], ends[i], None, {"logprobs": SCORES})
        for i in range(len(pieces))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_texts, "load_token_texts", lambda model: Named())
        view = make_view(**THINKING, alternatives=1)
        folded = fold(stream(view, events))
        whole = answer(view, events)["output"]
    assert folded[1]["content"][0]["logprobs"] == whole[1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in whole[1]["content"][0]["logprobs"]] == ["3", "4", "5"]


def test_obfuscation_pads_deltas() -> None:
    view = make_view(obfuscation=True)
    chunks = view.make_chunks()
    events = [*chunks.make_start(), *chunks.make_chunks(cut("Hello", 2))]
    sizes = {
        len(chunks.make_frame(event).partition(b"data: ")[2].strip())
        for _, event in events
        if "delta" in event
    }
    assert all(size % 64 == 0 for size in sizes)
