"""Events to chat objects: messages, deltas in OpenAI's order, the same however events are cut."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.reasoning import ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, EndEvent, JobError
from completions.jobs.record import JobRecord
from completions.responses import token_texts
from completions.responses.chat import ChatResponseContext

CALL = TOOL_FORMATS["hermes"].write(ToolCall("f", {"a": [1, "é"]}))
END = EndEvent(9, "completed", None, Usage(3, 7, 2))
PIECES = {1: b"<think>", 2: b"a b", 3: b"</think>", 4: b"\nyes"}


class Texts:
    def get_bytes(self, token_id: int) -> bytes:
        return PIECES.get(token_id, b".")


@pytest.fixture(autouse=True, scope="module")
def _texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_texts, "load_token_texts", lambda model: Texts())
        yield


def make_view(**changes: Any) -> ChatResponseContext:
    fields = {"id": "chatcmpl-1", "model": "m", "created": 5, "n": 1, "prompt_lengths": [3]}
    return ChatResponseContext(**{**fields, **changes})


def event(number: int, index: int, text: str, finish: str | None = None) -> ChoiceEvent:
    return ChoiceEvent(index, [number], text, finish, None)


def cut(text: str, *places: int, index: int = 0, finish: str = "stop") -> list[ChoiceEvent]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [text[edges[i] : edges[i + 1]] for i in range(len(edges) - 1)]
    last = len(pieces) - 1
    return [
        event(i + 1, index, piece, finish if i == last else None) for i, piece in enumerate(pieces)
    ]


def answer(view: ChatResponseContext, events: list[ChoiceEvent]) -> dict[str, Any]:
    collected = view.make_collected()
    collected.add(events)
    return collected.make_response(END.usage)


def frames(
    view: ChatResponseContext, events: list[ChoiceEvent], end: EndEvent = END
) -> list[dict[str, Any]]:
    chunks = view.make_chunks()
    numbered = [*chunks.make_chunks(events), *chunks.make_end(end)]
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    assert all(frame["sequence_number"] == number for number, frame in numbered)
    return [frame for _, frame in numbered]


def deltas(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for frame in frames for choice in frame["choices"]]


BOTH = {"reasoning": "a b", "reasoning_content": "a b"}


def test_a_plain_answer() -> None:
    body = answer(make_view(), cut("Hello", 2))
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", None)


def test_a_plain_stream() -> None:
    found = frames(make_view(include_usage=True), cut("Hello", 2))
    assert {frame["object"] for frame in found} == {"chat.completion.chunk"}
    assert deltas(found) == [
        {"role": "assistant", "content": ""},
        {"content": "He"},
        {"content": "llo"},
        {},
    ]
    finishes = [choice["finish_reason"] for frame in found for choice in frame["choices"]]
    assert finishes == [None, None, None, "stop"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["total_tokens"] == 10


def test_a_call() -> None:
    view = make_view(tool_format="hermes")
    (choice,) = answer(view, cut(CALL))["choices"]
    call_id = view.make_call_id(0, 0)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "f", "arguments": '{"a":[1,"é"]}'},
        },
    ]
    assert deltas(frames(view, cut(CALL)))[1:] == [
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "f", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":[1,"é"]}'}}]},
        {},
    ]


def test_call_ids_differ_by_place_and_request() -> None:
    one, other = make_view(), make_view(id="chatcmpl-2")
    ids = {
        view.make_call_id(choice, i) for view in (one, other) for choice in (0, 1) for i in (0, 1)
    }
    assert len(ids) == 8


@pytest.mark.parametrize(("finish", "text"), [("length", CALL[:-14]), ("stop", CALL[:-20])])
def test_calls_cut_short_do_not_finish_as_calls(finish: str, text: str) -> None:
    view = make_view(tool_format="hermes")
    (choice,) = answer(view, cut(text, finish=finish))["choices"]
    assert choice["finish_reason"] == finish
    assert choice["message"]["tool_calls"]


def thinking_view(**changes: Any) -> ChatResponseContext:
    return make_view(think_tags=ThinkTags("<think>", "</think>"), **changes)


def test_thoughts_and_their_tokens() -> None:
    events = [
        event(1, 0, "<think>"),
        event(2, 0, "a b"),
        event(3, 0, "</think>"),
        event(4, 0, "\nyes"),
        event(5, 0, "", "stop"),
    ]
    body = answer(thinking_view(), events)
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("a b", "yes")
    assert body["usage"]["reasoning_tokens"] == 3
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    found = frames(thinking_view(include_usage=True, continuous_usage_stats=True), events)
    assert deltas(found)[1:] == [
        {"reasoning": "a b", "reasoning_content": "a b"},
        {"content": "yes"},
        {},
    ]
    assert [frame["usage"]["reasoning_tokens"] for frame in found] == [1, 2, 3, 3, 3]


def test_reasoning_tokens_exclude_an_answer_in_the_same_event() -> None:
    together = ChoiceEvent(0, [1, 2, 3, 4], "<think>a b</think>\nyes", "stop", None)
    usage = answer(thinking_view(), [together])["usage"]
    assert usage["reasoning_tokens"] == 3


def test_thoughts_in_one_piece() -> None:
    view = thinking_view(is_reasoning_open=True, stream_reasoning=False)
    found = deltas(frames(view, [event(1, 0, "a "), event(2, 0, "b</think>c", "stop")]))
    assert found[1:] == [{**BOTH, "content": "c"}, {}]
    cut_short = deltas(frames(view, [event(1, 0, "a "), event(2, 0, "b", "length")]))
    assert cut_short[1:] == [BOTH, {}]


def test_special_tokens_that_are_hidden() -> None:
    view = thinking_view(hidden=("<|x|>",))
    (choice,) = answer(view, cut("<think>a<|x|></think>b<|x|>c", 10, 24))["choices"]
    assert choice["message"]["content"] == "bc"


def test_two_choices_do_not_mix() -> None:
    view = make_view(n=2, tool_format="hermes")
    events = [*cut(CALL, 5, 20, 33), *cut("plain", 2, index=1)]
    mixed = [each for pair in zip(events[:2], events[4:6], strict=True) for each in pair]
    body = answer(view, [*mixed, *events[2:4]])
    assert [choice["finish_reason"] for choice in body["choices"]] == ["tool_calls", "stop"]
    assert body["choices"][1]["message"]["content"] == "plain"


def test_token_ids_come_even_with_text_held_back() -> None:
    view = make_view(tool_format="hermes", return_token_ids=True, prompts=[[1, 2, 3]])
    found = frames(view, cut(CALL, 3, 8))
    ids = [i for frame in found for choice in frame["choices"] for i in choice.get("token_ids", ())]
    assert ids == [1, 2, 3]


def test_a_failed_job_ends_a_stream_with_its_error() -> None:
    end = EndEvent(2, "failed", JobError("worker_error", "lost"), None)
    *_, last = frames(make_view(), [event(1, 0, "a")], end)
    assert last["error"]["code"] == "worker_error"
    assert "choices" not in last


def test_a_cancelled_choice_keeps_what_it_has() -> None:
    view = make_view(tool_format="hermes")
    collected = view.make_collected()
    collected.add([event(1, 0, "ab <tool")])
    job = JobRecord(
        id="chatcmpl-1",
        kind="background",
        state="cancelled",
        model="m",
        organization_id=1,
        api_key_id=2,
        created=0.0,
        seconds_left=100.0,
        ttl=10,
        finished=50.0,
        usage=Usage(3, 1),
    )
    (choice,) = collected.make_polled(job)["choices"]
    assert choice["message"]["content"] == "ab <tool"
    assert choice["finish_reason"] == "abort"
    found = frames(view, [event(1, 0, "ab <tool")], EndEvent(2, "cancelled", None, None))
    assert "".join(delta.get("content", "") for delta in deltas(found)) == "ab <tool"


@given(
    text=st.lists(st.sampled_from([CALL, "<think>", "</think>", "x ", "\n", "<tool"]), max_size=6),
    places=st.lists(st.integers(0, 200), max_size=10),
)
def test_deltas_make_the_message(text: list[str], places: list[int]) -> None:
    view = thinking_view(tool_format="hermes")
    whole = answer(view, cut("".join(text)))["choices"][0]
    events = cut("".join(text), *places)
    assert answer(view, events)["choices"][0] == whole
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas(frames(view, events)):
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                message["tool_calls"].append({k: v for k, v in piece.items() if k != "index"})
            else:
                function = message["tool_calls"][piece["index"]]["function"]
                function["arguments"] += piece["function"]["arguments"]
    expected = whole["message"]
    assert message["content"] == (expected["content"] or "")
    assert message["reasoning_content"] == (expected["reasoning_content"] or "")
    assert message["tool_calls"] == expected.get("tool_calls", [])


def test_a_context_of_the_previous_version_is_read():
    stored = thinking_view(is_reasoning_open=True).to_json()
    former = stored.replace(b"think_tags", b"thinking_marks")
    former = former.replace(b"is_reasoning_open", b"thinking_open")
    context = ChatResponseContext.read(former)
    assert former != stored
    assert context == ChatResponseContext.read(stored)
    assert context.think_tags == ("<think>", "</think>")
