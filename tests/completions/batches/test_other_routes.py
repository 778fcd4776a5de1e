"""Batches of responses and of messages: answers in their own shapes, read as a chat's are."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from completions.batches.export.columns import Collector
from completions.batches.results.answers import count_tokens, list_choices
from completions.batches.results.index import get_reason
from completions.models import BatchResult, StoredResponse
from tests.completions.bench import Bench, jsonl

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "tiny", "input": "Hi", "max_output_tokens": 2},
    MESSAGES: {
        "model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2,
    },
}  # fmt: skip


def line(url: str, custom_id: str = "a", **body: Any) -> dict[str, Any]:
    whole = {**BODIES[url], **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": whole}


@pytest.mark.parametrize("url", BODIES)
def test_a_batch_runs_to_its_end(bench: Bench, url: str) -> None:
    lines = [line(url), line(url, "bad", temperature=9)]
    seen = bench.run_to_end(bench.create(lines, endpoint=url))
    assert seen["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert seen["usage"]["output_tokens"] == 2
    assert seen["summary"]["finish_reasons"] == {"length": 1}
    assert seen["summary"]["errors"] == {"decimal_above_max_value": 1}
    (answered,) = bench.lines(seen["output_file_id"])
    (choice,) = list_choices(answered["response"]["body"])
    assert choice["message"]["content"] == "AB"
    (refused,) = bench.lines(seen["error_file_id"])
    error = refused["response"]["body"]["error"]
    assert error["message"].startswith("temperature: must be at most 2")
    reasons = BatchResult.objects.filter(batch_id=seen["id"]).order_by("number")
    assert [row.reason for row in reasons] == ["length", "decimal_above_max_value"]


REFUSED = [
    (line(RESPONSES, previous_response_id="resp_1"), "body.previous_response_id"),
    (line(RESPONSES, conversation="conv_1"), "body.conversation"),
    (line(RESPONSES, stream=True), "body.stream"),
    (line(RESPONSES, background=True), "body.background"),
    (line(RESPONSES, input=[{"type": "item_reference", "id": "msg_1"}]), "body.input[0].id"),
    (line(RESPONSES, completion_window="5m"), "body.completion_window"),
    (line(RESPONSES, on_late="refuse"), "body.on_late"),
    (line(MESSAGES, completion_window="5m"), "body.completion_window"),
    (line(RESPONSES, max_output_tokens=0), "body.max_output_tokens"),
    (line(MESSAGES, stream=True), "body.stream"),
    (line(MESSAGES, stop_sequences=[""]), "body.stop_sequences[0]"),
]


@pytest.mark.represented_by("bad0-body.previous_response_id", "bad8-body.max_output_tokens")
@pytest.mark.parametrize(("bad", "param"), REFUSED)
def test_what_a_line_cannot_have(bench: Bench, bad: dict[str, Any], param: str) -> None:
    batch = bench.create([bad], endpoint=bad["url"], on_invalid="fail")
    bench.turn()
    (error,) = bench.get(batch)["errors"]["data"]
    assert error["param"] == param


def test_a_response_of_a_line_is_not_stored(bench: Bench) -> None:
    lines = [line(RESPONSES, store=True), line(RESPONSES, "b")]
    seen = bench.run_to_end(bench.create(lines, endpoint=RESPONSES))
    stored, other = bench.lines(seen["output_file_id"])
    assert stored["meta"]["ignored_params"] == ["store"]
    assert "ignored_params" not in other["meta"]
    assert not any(each["response"]["body"]["store"] for each in (stored, other))
    assert not StoredResponse.objects.exists()


@pytest.mark.parametrize("url", BODIES)
def test_receipts_are_verified(bench: Bench, url: str, tmp_path: Path) -> None:
    bench.worker.execution.beat("tiny", {"build": "c-0123"})
    done = bench.run_to_end(bench.create([line(url)], endpoint=url, receipts=True), tokens=(32, 33))
    (answered,) = bench.lines(done["output_file_id"])
    path, printed = tmp_path / "out.jsonl", io.StringIO()
    path.write_bytes(jsonl([answered]))
    call_command("verify", str(path), stdout=printed)
    assert printed.getvalue() == "1 lines hold\n"
    answered["receipt"]["output_ids"][0][0] = 34
    path.write_bytes(jsonl([answered]))
    with pytest.raises(CommandError):
        call_command("verify", str(path), stdout=io.StringIO())


CALL = {"name": "f", "arguments": "{}"}
RESPONSE = {
    "status": "completed",
    "output": [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "So"}]},
        {"type": "function_call", "call_id": "c", **CALL},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    ],
    "usage": {
        "input_tokens": 5, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1},
    },
}  # fmt: skip
MESSAGE = {
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "So"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4,
        "output_tokens_details": {"thinking_tokens": 1},
    },
}  # fmt: skip


@pytest.mark.parametrize("body", [RESPONSE, MESSAGE])
def test_an_answer_is_the_choice_of_a_chat(body: dict[str, Any]) -> None:
    (choice,) = list_choices(body)
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("So", "hm")
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert choice["finish_reason"] == "tool_calls"
    assert count_tokens(body) == {
        "prompt_tokens": 5, "completion_tokens": 4, "reasoning_tokens": 1,
    }  # fmt: skip
    assert get_reason({"response": {"body": body}}) == "tool_calls"


@pytest.mark.parametrize(
    ("change", "reason", "matched"),
    [
        ({"stop_reason": "max_tokens"}, "length", None),
        ({"stop_reason": "pause_turn"}, "abort", None),
        ({"stop_reason": "stop_sequence", "stop_sequence": "#", "content": []}, "stop", "#"),
    ],
)
def test_how_a_message_ended(change: Any, reason: str, matched: Any) -> None:
    (choice,) = list_choices({**MESSAGE, **change})
    assert (choice["finish_reason"], choice["matched_stop"]) == (reason, matched)


@pytest.mark.parametrize("body", [{}, {"choices": [], "usage": None}])
def test_a_body_without_usage_has_no_tokens(body: dict[str, Any]) -> None:
    assert set(count_tokens(body).values()) == {0}


def test_formats_have_columns() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    for body in ({"text": {"format": form}}, {"output_config": {"format": form}}):
        collector = Collector()
        collector.see(body)
        (column,) = collector.columns(receipts=False).answer_columns
        assert column.property == "ok"
    for odd in ({"text": 1}, {"output_config": {"format": []}}, {"text": {"format": {"type": 2}}}):
        collector = Collector()
        collector.see(odd)
        assert not collector.columns(receipts=False).answer_columns
