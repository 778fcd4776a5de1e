"""The Responses API through the official client: the demo model, and a small one that calls tools
and thinks."""

import json
import time
from typing import Any

import httpx
import openai
import pytest
import regex
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL

pytestmark = pytest.mark.acceptance

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SHORT: dict[str, Any] = {"model": MODEL, "max_output_tokens": 6, "temperature": 0}
DAYS: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}
NO_THOUGHTS = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}


class Answer(BaseModel):
    """The schema of the structured answers."""

    ok: bool


def ended(client: openai.OpenAI, response: Response, timeout: float = 120) -> Response:
    """The response once it has ended."""
    deadline = time.monotonic() + timeout
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        response = client.responses.retrieve(response.id, extra_query={"wait": 10})
    return response


def test_a_response_and_its_stream_agree(client: openai.OpenAI) -> None:
    whole = client.responses.create(**SHORT, input="Say hello.")
    assert whole.output_text
    assert (whole.status, whole.usage.output_tokens) == ("incomplete", 6)
    with client.responses.stream(**SHORT, input="Say hello.") as stream:
        kinds, final = [], None
        for event in stream:
            kinds.append(event.type)
            final = getattr(event, "response", final)
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert final.output_text == whole.output_text


def test_every_event_is_one_that_the_client_knows(http: httpx.Client) -> None:
    body = {**SHORT, "input": "Say hello.", "stream": True, "background": True}
    body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    lines = http.post("/v1/responses", json=body).raise_for_status().text.split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for event in events:
        assert EVENT.validate_python(event).type == event["type"]
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    entries = [entry for event in deltas for entry in event["logprobs"]]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    (part,) = events[-1]["response"]["output"][0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]


def test_a_response_goes_on_from_another(client: openai.OpenAI) -> None:
    one = client.responses.create(**SHORT, input="Say hello.")
    two = client.responses.create(**SHORT, input="Again.", previous_response_id=one.id)
    assert two.previous_response_id == one.id
    said = [*client.responses.input_items.list(one.id).data, *one.output, "Again."]
    inputs: Any = [
        {"role": "user", "content": each} if isinstance(each, str) else each.to_dict()
        for each in said
    ]
    same = client.responses.create(**SHORT, input=inputs)
    assert same.usage.input_tokens == two.usage.input_tokens
    assert same.output_text == two.output_text
    assert client.responses.retrieve(two.id).output_text == two.output_text
    client.responses.delete(one.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(one.id)


def test_a_conversation(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "greeting"})
    one = client.responses.create(**SHORT, input="Say hello.", conversation=made.id)
    items = client.conversations.items.list(made.id, order="asc").data
    assert [item.type for item in items] == ["message", "message"]
    assert items[1].id == one.output[0].id
    two = client.responses.create(**SHORT, input="Again.", conversation=made.id)
    assert two.usage.input_tokens > one.usage.input_tokens
    client.conversations.items.create(made.id, items=[{"role": "user", "content": "Bye."}])
    assert len(client.conversations.items.list(made.id).data) == 5
    client.conversations.items.delete(items[0].id, conversation_id=made.id)
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(made.id).metadata == {"a": "b"}
    assert client.conversations.delete(made.id).deleted


def test_a_background_response_is_polled_and_cancelled(client: openai.OpenAI) -> None:
    made = client.responses.create(**SHORT, input="Say hello.", background=True)
    assert made.status == "queued"
    done = ended(client, made)
    assert (done.status, done.output_text != "") == ("incomplete", True)
    long = {**SHORT, "max_output_tokens": 4000}
    endless = client.responses.create(**long, input="Say hello.", background=True)
    assert client.responses.cancel(endless.id).id == endless.id
    assert ended(client, endless).status == "cancelled"


def test_structured_answers(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="Ok?", text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer)


def test_tools_and_reasoning(service: Installation, client: openai.OpenAI) -> None:
    service.wait_served(SMALL)
    call: dict[str, Any] = {"model": SMALL, "tools": [DAYS], "max_output_tokens": 60}
    call["parallel_tool_calls"] = False
    made = client.responses.create(**call, **NO_THOUGHTS, input="Rome?", tool_choice="required")
    asked = [item for item in made.output if item.type == "function_call"]
    assert asked
    assert json.loads(asked[0].arguments).keys() == {"city", "days"}
    allowed: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_weather"}],
    }
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "Sun."}
        for item in asked
    ]
    again = client.responses.create(
        **call,
        **NO_THOUGHTS,
        input=outputs,
        previous_response_id=made.id,
        tool_choice=allowed,
    )
    assert [item.type for item in again.output] == ["function_call"]
    assert again.usage.input_tokens > made.usage.input_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 1}}}}, "text"),
    ],
)
def test_refusals_name_the_field(client: openai.OpenAI, body: Any, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(**{**SHORT, "input": "Hi", **body})
    assert str(caught.value.param).startswith(param)
    assert caught.value.status_code in (400, 404)


APPLY_PATCH = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""The grammar of Codex's tool."""
CHANGE = r"(?:(?:@@|@@ .+|[-+ ].*)\n)+(?:\*\*\* End of File\n)?"
PATCH = regex.compile(
    r"\*\*\* Begin Patch\n"
    r"(?:\*\*\* Add File: .+\n(?:\+.*\n)+|\*\*\* Delete File: .+\n"
    rf"|\*\*\* Update File: .+\n(?:\*\*\* Move to: .+\n)?(?:{CHANGE})?)+"
    r"\*\*\* End Patch\n?"
)


@pytest.mark.long
def test_codex_patches_parse(client: openai.OpenAI) -> None:
    tool: Any = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Use the `apply_patch` tool to edit files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH},
    }
    choice: Any = {"type": "custom", "name": "apply_patch"}
    asked: dict[str, Any] = {"model": MODEL, "input": "Add hello.py.", "max_output_tokens": 150}
    for seed in range(4):
        body = {"seed": seed, "temperature": 0.7}
        made = client.responses.create(
            **asked, tools=[tool], tool_choice=choice, extra_body=body, parallel_tool_calls=False
        )
        (item,) = made.output
        assert item.type == "custom_tool_call"
        assert (item.name, item.status) == ("apply_patch", made.status)
        is_cut = item.status == "incomplete"  # then it is the beginning of a patch
        assert PATCH.fullmatch(item.input, partial=is_cut), item.input
    output: Any = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Done."}
    then = client.responses.create(**SHORT, input=[output], previous_response_id=made.id)
    assert then.output_text
