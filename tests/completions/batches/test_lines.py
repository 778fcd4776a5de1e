"""A line of a batch is prepared and answered as a live request of its endpoint."""

from contextlib import suppress

import orjson
import pytest
from asgiref.sync import async_to_sync

from completions.accounts.keys import Principal
from completions.batches.line_preparation import prepare_line
from completions.contract.job_request import decode_job_request, encode_job_request
from completions.contract.usage import Usage
from completions.exceptions import APIError
from completions.jobs.ended import EndedJob
from completions.jobs.events import ChoiceEvent, encode_choices, encode_end
from completions.responses.whole_response import make_whole_response
from tests.completions.checking import new_checks

pytestmark = pytest.mark.usefixtures("served")

ANYONE = Principal(1, 1, "abcdef", (), None)
HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def line(endpoint, job_id, body):
    return async_to_sync(prepare_line)(new_checks(), endpoint, job_id, body, ANYONE)


@pytest.mark.parametrize(
    ("endpoint", "job_id", "body", "kind"),
    [
        ("/v1/completions", "cmpl-1", {"model": "tiny", "prompt": [1]}, "text_completion"),
        ("/v1/chat/completions", "chatcmpl-1", HI, "chat.completion"),
    ],
)
def test_both_endpoints(endpoint, job_id, body, kind):
    prepared = line(endpoint, job_id, body)
    assert prepared.job_request.prompts
    usage = Usage(1, 1)
    events = [
        encode_choices(1, [ChoiceEvent(0, [5], "yes", "stop")]),
        encode_end(2, "completed", None, usage),
    ]
    status, answer = make_whole_response(ended(job_id, prepared.context.to_json(), events, usage))
    assert (status, answer["id"], answer["object"]) == (200, job_id, kind)
    (choice,) = answer["choices"]
    assert choice.get("text", choice.get("message", {}).get("content")) == "yes"


def ended(job_id, context, events, usage):
    return EndedJob(
        entry_id=b"1-0",
        id=job_id,
        kind="batch",
        state="completed",
        model="tiny",
        organization_id=1,
        api_key_id=1,
        created=1.0,
        started=2.0,
        finished=3.0,
        usage=usage,
        cost=0,
        first=2.5,
        attempt=1,
        last_owner="w",
        is_durable=True,
        context=context,
        stream=events,
    )


def test_a_bad_line_is_refused_as_a_live_request():
    with pytest.raises(APIError) as caught:
        line("/v1/chat/completions", "chatcmpl-1", {**HI, "tools": 3})
    assert caught.value.param == "tools"


HUGE = 10**30
TOOL = {
    "type": "function",
    "function": {"name": "f", "strict": True, "parameters": {"properties": {"a": {"const": HUGE}}}},
}


@pytest.mark.parametrize(
    "field",
    [
        {"top_k": HUGE},
        {"metadata": {"a": HUGE}},
        {"json_schema": {"const": HUGE}},
        {"response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": {"maximum": HUGE}},
        }},
        {"structural_tag": {"format": {"type": "json_schema", "json_schema": {"const": HUGE}}}},
        {"chat_template_kwargs": {"a": HUGE}},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "required"},
        {"custom_params": {"a": HUGE}},
        {"custom_logit_processor": "disallowed_tokens", "custom_params": {"token_ids": [HUGE]}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_integers_of_any_size_are_refused_or_reach_the_worker(endpoint, field):
    """JSON's have no limit, those of what carries a job have 64 bits."""
    usual = HI if "chat" in endpoint else {"model": "tiny", "prompt": [1]}
    with suppress(APIError):
        prepared = line(endpoint, "cmpl-1", {**usual, **field})
        assert orjson.loads(prepared.context.to_json())
        assert decode_job_request(encode_job_request(prepared.job_request)) == prepared.job_request
