"""Events to completion objects: whole, polled, streamed."""

from types import SimpleNamespace

import pytest

from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, EndEvent, JobError
from completions.jobs.record import JobRecord
from completions.responses import completion
from completions.responses.completion import Chunks, CollectedResponse, ResponseContext


def make_view(**changes) -> ResponseContext:
    fields = {
        "id": "cmpl-1",
        "model": "m",
        "created": 5,
        "n": 2,
        "prompt_lengths": [3, 4],
        "weight_version": "w",
    }
    return ResponseContext(**{**fields, **changes})


def event(number, index, text, ids, finish=None, matched=None, **extras) -> ChoiceEvent:
    return ChoiceEvent(index, ids, text, finish, matched, extras)


EVENTS = [
    event(1, 0, "a", [1]),
    event(2, 3, "x", [2]),
    event(3, 0, "b", [3, 4], "stop", 4),
    event(4, 1, "", [5], "length"),
    event(5, 2, "z", [6], "stop", "END"),
    event(6, 3, "y", [7], "length"),
]
END = EndEvent(7, "completed", None, Usage(7, 7, 2))


def record(state, **changes) -> JobRecord:
    fields = {
        "id": "cmpl-1",
        "kind": "background",
        "state": state,
        "model": "m",
        "organization_id": 1,
        "api_key_id": 2,
        "created": 0.0,
        "seconds_left": 100.0,
        "ttl": 10,
        "finished": None,
        "error": None,
        "usage": None,
    }
    return JobRecord(**{**fields, **changes})


def test_choices_are_folded_in_order_of_their_index():
    collected = CollectedResponse(make_view())
    collected.add(EVENTS)
    body = collected.make_response(END.usage)
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "ab"),
        (1, ""),
        (2, "z"),
        (3, "xy"),
    ]
    assert [c["finish_reason"] for c in body["choices"]] == ["stop", "length", "stop", "length"]
    assert [c["matched_stop"] for c in body["choices"]] == [4, None, "END", None]
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 7,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "reasoning_tokens": 0,
    }
    assert "token_ids" not in body["choices"][0]
    assert body["metadata"] == {"weight_version": "w"}
    assert body["system_fingerprint"] == "fp_w"


def test_token_ids_come_when_asked_for():
    collected = CollectedResponse(
        make_view(prompts=[[1, 2, 3], [4, 5, 6, 7]], return_token_ids=True)
    )
    collected.add(EVENTS)
    first, *_, last = collected.make_response(None)["choices"]
    assert (first["token_ids"], first["prompt_token_ids"]) == ([1, 3, 4], [1, 2, 3])
    assert (last["token_ids"], last["prompt_token_ids"]) == ([2, 7], [4, 5, 6, 7])
    assert (first["token_mask"], last["token_mask"]) == ([1, 1, 1], [1, 1])


def test_chunks_hold_one_choice_each_and_are_numbered():
    frames = list(Chunks(make_view()).make_chunks(EVENTS))
    assert [number for number, _ in frames] == [1, 2, 3, 4, 5, 6]
    for number, chunk in frames:
        assert chunk["sequence_number"] == number
        assert len(chunk["choices"]) == 1
        assert chunk["usage"] is None
        assert (chunk["id"], chunk["object"], chunk["created"]) == ("cmpl-1", "text_completion", 5)


def test_prompt_ids_come_in_a_choices_first_chunk_only():
    chunks = [
        c["choices"][0]
        for _, c in Chunks(make_view(prompts=[[1], [2]], return_token_ids=True)).make_chunks(EVENTS)
    ]
    assert [("prompt_token_ids" in c, c["index"]) for c in chunks] == [
        (True, 0),
        (True, 3),
        (False, 0),
        (True, 1),
        (True, 2),
        (False, 3),
    ]


def test_continuous_usage_counts_the_choice_so_far():
    frames = Chunks(make_view(continuous_usage_stats=True)).make_chunks(EVENTS)
    counts = [(c["usage"]["prompt_tokens"], c["usage"]["completion_tokens"]) for _, c in frames]
    assert counts == [(3, 1), (4, 1), (3, 3), (3, 1), (4, 1), (4, 2)]


def test_the_usage_chunk_has_no_choices():
    ((number, chunk),) = Chunks(make_view(include_usage=True)).make_end(END)
    assert (number, chunk["choices"], chunk["usage"]["total_tokens"]) == (1, [], 14)
    assert list(Chunks(make_view()).make_end(END)) == []


def test_a_failed_job_ends_in_an_error_frame():
    end = EndEvent(1, "failed", JobError("generation_timeout", ""), Usage(7, 1))
    ((number, frame),) = Chunks(make_view(include_usage=True)).make_end(end)
    assert number == frame["sequence_number"] == 1
    assert frame["error"]["code"] == "generation_timeout"


LATE = EndEvent(7, "failed", JobError("generation_timeout", ""), Usage(7, 5))


def test_a_deadline_ends_choices_whose_length_is_open():
    collected, chunks = (
        make(make_view(default_length=True)) for make in (CollectedResponse, Chunks)
    )
    begun = [*EVENTS[:3], *EVENTS[3:4], event(5, 2, "z", [6])]
    collected.add(begun)
    list(chunks.make_chunks(begun))
    collected.add(collected.choices.end_at(LATE))
    ends = [(c["text"], c["finish_reason"]) for c in collected.make_response(LATE.usage)["choices"]]
    assert ends == [("ab", "stop"), ("", "length"), ("z", "length"), ("x", "length")]
    frames = [frame["choices"][0] for _, frame in chunks.make_end(LATE)]
    assert [(c["index"], c["finish_reason"]) for c in frames] == [(2, "length"), (3, "length")]


@pytest.mark.parametrize(
    ("default_length", "events"), [(False, EVENTS[:5]), (True, EVENTS[:3])], ids=["given", "none"]
)
def test_a_deadline_is_an_error_with_a_length_or_a_choice_without_text(default_length, events):
    view = make_view(default_length=default_length)
    chunks = Chunks(view)
    list(chunks.make_chunks(events))
    ((_, frame),) = chunks.make_end(LATE)
    assert frame["error"]["code"] == "generation_timeout"
    assert chunks.choices.end_at(LATE) == []


def test_a_cancelled_job_aborts_its_unfinished_choices():
    chunks = Chunks(make_view(include_usage=True))
    list(chunks.make_chunks(EVENTS[:4]))
    frames = list(chunks.make_end(EndEvent(5, "cancelled", None, Usage(7, 5))))
    assert [number for number, _ in frames] == [5, 6, 7]
    assert [frame["sequence_number"] for _, frame in frames] == [5, 6, 7]
    *aborts, usage = [frame for _, frame in frames]
    assert [(c["choices"][0]["index"], c["choices"][0]["finish_reason"]) for c in aborts] == [
        (2, "abort"),
        (3, "abort"),
    ]
    assert usage["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(("state", "status"), [("queued", "queued"), ("running", "in_progress")])
def test_a_polled_job_has_no_choices_before_its_end(state, status, monkeypatch):
    monkeypatch.setattr(completion, "time", SimpleNamespace(time=lambda: 0.0))
    body = CollectedResponse(make_view()).make_polled(record(state))
    assert (body["status"], body["choices"], body["usage"]) == (status, [], None)
    assert body["expires_at"] == 110


def test_a_polled_failure_has_its_error_and_partial_choices():
    collected = CollectedResponse(make_view(n=1, prompt_lengths=[3]))
    collected.add([event(1, 0, "part", [1])])
    failed = record("failed", finished=50.0, error=JobError("worker_error", "boom"))
    body = collected.make_polled(failed)
    assert body["error"]["code"] == "worker_error"
    assert body["choices"][0]["text"] == "part"
    assert body["choices"][0]["finish_reason"] == "abort"
    assert body["expires_at"] == 60


@pytest.mark.parametrize(
    ("code", "reason"), [("queue_timeout", "expired"), ("generation_timeout", "deadline")]
)
def test_a_job_past_its_deadline_is_incomplete(code, reason):
    job = record("failed", finished=50.0, error=JobError(code, ""))
    body = CollectedResponse(make_view()).make_polled(job)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": reason})
    # Who polls it is mostly in the background already, so the message does not say to send it so.
    assert 'Requests with "background": true' in body["error"]["message"]
    assert body["error"]["code"]


def test_a_view_survives_storage():
    view = make_view(prompts=[[1], [2]], include_usage=True, rid=["a", "b"])
    assert ResponseContext.read(view.to_json()) == view
    assert b"echo" not in view.to_json()


ONE = {"n": 1, "prompt_lengths": [3]}
WHOLE = [
    event(1, 0, "a", [1], cached_tokens=2),
    event(
        2,
        0,
        "b",
        [2],
        "stop",
        "b+",
        matched_stop_text="bb",
        hidden_states=[0.5, 1.0],
        routed_experts="AAAA",
    ),
]


def test_meta_info_comes_with_the_end_of_a_choice():
    collected = CollectedResponse(make_view(**ONE, meta_info=True, rid="mine"))
    collected.add(WHOLE)
    body = collected.make_response(Usage(3, 2))
    assert body["rid"] == "mine"
    assert body["choices"][0]["meta_info"] == {
        "id": "mine",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 2,
        "finish_reason": {"type": "stop", "matched": "b+"},
        "matched_stop_text": "bb",
        "routed_experts": "AAAA",
        "weight_version": "w",
        "engine": None,
    }
    first, last = [
        c["choices"][0] for _, c in Chunks(make_view(**ONE, meta_info=True)).make_chunks(WHOLE)
    ]
    assert "meta_info" not in first
    assert last["meta_info"] == {**body["choices"][0]["meta_info"], "id": "cmpl-1"}


@pytest.mark.parametrize(
    ("rid", "n", "prompts", "ids"),
    [
        ("r", 1, 1, ["r"]),
        ("r", 2, 1, ["r_0", "r_1"]),
        ("r", 1, 2, ["r_0", "r_1"]),
        (["a", "b"], 1, 2, ["a", "b"]),
        (["a", "b"], 2, 2, ["a_0", "a_1", "b_0", "b_1"]),
    ],
)
def test_every_choice_has_a_rid_of_its_own(rid, n, prompts, ids):
    view = make_view(rid=rid, n=n, prompt_lengths=[1] * prompts)
    assert [view.get_rid(choice) for choice in range(view.num_choices)] == ids


def test_how_choices_ended_as_sglang_says_it():
    collected = CollectedResponse(make_view(n=2, prompt_lengths=[3], meta_info=True))
    collected.add([event(1, 0, "a", [1, 2], "length")])
    length, abort = [choice["meta_info"] for choice in collected.make_response(None)["choices"]]
    assert length["finish_reason"] == {"type": "length", "length": 2}
    assert abort["finish_reason"]["type"] == "abort"


def test_hidden_states_and_the_extension_follow_the_text():
    view = make_view(
        **ONE,
        hidden_states=True,
        routed_experts=True,
        cached_tokens_details=True,
        include_usage=True,
    )
    extension = {"routed_experts": "AAAA", "cached_tokens_details": {"device": 2}}
    collected = CollectedResponse(view)
    collected.add(WHOLE)
    body = collected.make_response(Usage(3, 2))
    assert body["choices"][0]["hidden_states"] == [0.5, 1.0]
    assert body["sglext"] == extension

    chunks = Chunks(view)
    for _, chunk in chunks.make_chunks(WHOLE):
        assert "hidden_states" not in chunk["choices"][0]
    (n1, states), (n2, sglext), (n3, usage) = chunks.make_end(
        EndEvent(3, "completed", None, Usage(3, 2))
    )
    assert (n1, n2, n3) == (3, 4, 5)
    (choice,) = states["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", None)
    assert choice["hidden_states"] == [0.5, 1.0]
    assert (sglext["choices"], sglext["sglext"]) == ([], extension)
    assert usage["usage"]["completion_tokens"] == 2


def test_continuous_usage_has_the_cached_tokens():
    frames = Chunks(make_view(**ONE, continuous_usage_stats=True)).make_chunks(WHOLE)
    cached = [c["usage"]["prompt_tokens_details"]["cached_tokens"] for _, c in frames]
    assert cached == [2, 2]


def test_an_adapted_model_is_named_as_the_request_did():
    view = make_view(model="m:polite", base_model="m")
    assert (view.make_envelope()["model"], view.served_model) == ("m:polite", "m")
