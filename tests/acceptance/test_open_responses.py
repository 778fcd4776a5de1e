"""The requests of the Open Responses compliance suite, and what it holds their answers to:
https://www.openresponses.org/compliance. The model answers by a script, so that it calls the tool.
Its image and its file are refused, as all are."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from completions.requests.compaction import ORDER
from tests.acceptance.scripted_model import save_scripted_model
from tests.acceptance.service import Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

WEATHER = "What's the weather like in San Francisco?"
TEMPERATURE = "Use the weather tool to get the temperature in San Francisco."
CALL = TOOL_FORMATS["hermes"].write(ToolCall("get_weather", {"location": "San Francisco, CA"}))
SCRIPTS = {
    "Say hello in exactly 3 words.": "Hello to you.",
    "Count from 1 to 5.": "1 2 3 4 5",
    "Say hello.": "Ahoy!",
    "Repeat only the number.": "four",
    "What is my name?": "Alice.",
    WEATHER: CALL,
    TEMPERATURE: CALL,
    "Remember this code word: papaya. Reply with only OK.": "OK",
    "What code word did I ask you to remember?": "Papaya.",
    ORDER: "They launch on Tuesday.",
    "Sum up our conversation so far.": "Nothing more.",
}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state"}},
        "required": ["location"],
    },
}


def strict(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*required], "properties": {**required, **optional}}


def const(value: str) -> dict[str, Any]:
    return {"const": value}


TEXT, NUMBER, COUNT, FLAG = ({"type": each} for each in ("string", "number", "integer", "boolean"))
MAYBE_TEXT, MAYBE_COUNT = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
STATUS = {"enum": ["in_progress", "completed", "incomplete"]}
PART = {
    "anyOf": [
        strict({"type": const("output_text"), "text": TEXT, "annotations": {"type": "array"}}),
        strict({"type": const("reasoning_text"), "text": TEXT}),
    ]
}
PARTS = {"type": "array", "items": PART}
ITEM = {
    "anyOf": [
        strict(
            {
                "type": const("message"),
                "id": TEXT,
                "status": STATUS,
                "role": const("assistant"),
                "content": PARTS,
            }
        ),
        strict(
            {
                "type": const("function_call"),
                "id": TEXT,
                "call_id": TEXT,
                "name": TEXT,
                "arguments": TEXT,
                "status": STATUS,
            }
        ),
        strict(
            {"type": const("reasoning"), "id": TEXT, "summary": {"type": "array"}}, content=PARTS
        ),
    ]
}
USAGE = strict(
    {
        "input_tokens": COUNT,
        "output_tokens": COUNT,
        "total_tokens": COUNT,
        "input_tokens_details": strict({"cached_tokens": COUNT}),
        "output_tokens_details": strict({"reasoning_tokens": COUNT}),
    }
)
COMPACTED = strict(
    {
        "id": TEXT,
        "object": const("response.compaction"),
        "created_at": COUNT,
        "output": {
            "type": "array",
            "items": strict({"type": const("compaction"), "id": TEXT, "encrypted_content": TEXT}),
            "minItems": 1,
        },
        "usage": USAGE,
    }
)
OFFERED = strict({"type": const("function"), "name": TEXT}, strict={"type": ["boolean", "null"]})
RESPONSE = strict(
    {
        "id": TEXT,
        "object": const("response"),
        "created_at": COUNT,
        "completed_at": MAYBE_COUNT,
        "status": TEXT,
        "incomplete_details": {"type": ["object", "null"]},
        "model": TEXT,
        "previous_response_id": MAYBE_TEXT,
        "instructions": MAYBE_TEXT,
        "output": {"type": "array", "items": ITEM},
        "error": {"type": ["object", "null"]},
        "tools": {"type": "array", "items": OFFERED},
        "tool_choice": {"type": ["string", "object"]},
        "truncation": {"enum": ["auto", "disabled"]},
        "parallel_tool_calls": FLAG,
        "text": strict({"format": {"type": "object"}}),
        "top_p": NUMBER,
        "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER,
        "top_logprobs": COUNT,
        "temperature": NUMBER,
        "reasoning": {"type": ["object", "null"]},
        "usage": {"anyOf": [USAGE, {"type": "null"}]},
        "max_output_tokens": MAYBE_COUNT,
        "max_tool_calls": MAYBE_COUNT,
        "store": FLAG,
        "background": FLAG,
        "service_tier": TEXT,
        "metadata": {"type": "object"},
        "safety_identifier": MAYBE_TEXT,
        "prompt_cache_key": MAYBE_TEXT,
        "user": MAYBE_TEXT,
    }
)
PLACE = {"item_id": TEXT, "output_index": COUNT}
IN_PART = {**PLACE, "content_index": COUNT}
SNAPSHOT, WHOLE_ITEM = {"response": RESPONSE}, {"output_index": COUNT, "item": ITEM}
WHOLE_PART = {**IN_PART, "part": PART}
EVENTS: dict[str, dict[str, Any]] = {
    "created": SNAPSHOT,
    "in_progress": SNAPSHOT,
    "completed": SNAPSHOT,
    "output_item.added": WHOLE_ITEM,
    "output_item.done": WHOLE_ITEM,
    "content_part.added": WHOLE_PART,
    "content_part.done": WHOLE_PART,
    "output_text.delta": {**IN_PART, "delta": TEXT},
    "output_text.done": {**IN_PART, "text": TEXT},
    "function_call_arguments.delta": {**PLACE, "delta": TEXT},
    "function_call_arguments.done": {**PLACE, "arguments": TEXT},
}
"""The required fields of each event, beside its type and number."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home: Path = tmp_path_factory.mktemp("open")

    class Scripted(Installation):
        def __init__(self) -> None:
            super().__init__(home, QUIRE_SHUTDOWN_GRACE="1")
            folder = save_scripted_model(home / "model", SCRIPTS)
            (home / "models.toml").write_text(
                f'[models.scripted]\npath = "{folder}"\ndtype = "float32"\ntool_format = "hermes"\n'
            )

    with Scripted() as installation, installation.http() as client:
        installation.wait_served("scripted")
        yield client


def ask(http: httpx.Client, *texts: str | dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Send a request. Returns the response, after it and all of its events were checked."""
    items = [
        {"type": "message", "role": "user", "content": each} if isinstance(each, str) else each
        for each in texts
    ]
    body = {"model": "scripted", "input": items, "temperature": 0, **fields}
    answer = http.post("/v1/responses", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        response: dict[str, Any] = answer.json()
    else:
        lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        for number, event in enumerate(map(json.loads, lines)):
            kind = event["type"].removeprefix("response.")
            jsonschema.validate(event, strict({"type": TEXT, **EVENTS[kind]}))
            assert event["sequence_number"] == number
        response = json.loads(lines[-1])["response"]
        response["kinds"] = [json.loads(line)["type"] for line in lines]
    jsonschema.validate(response, RESPONSE)
    assert response["output"]
    assert response["status"] == "completed"
    return response


def said(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    return str(item["content"][0]["text"])


def test_texts(served: httpx.Client) -> None:
    assert said(ask(served, "Say hello in exactly 3 words.")) == "Hello to you."
    assert said(ask(served, "Count from 1 to 5.", stream=True)) == "1 2 3 4 5"
    pirate = {"type": "message", "role": "system", "content": "You are a pirate."}
    assert said(ask(served, pirate, "Say hello.")) == "Ahoy!"
    alice = {"type": "message", "role": "assistant", "content": "Hello Alice!"}
    assert said(ask(served, "My name is Alice.", alice, "What is my name?")) == "Alice."
    phases = [
        {"type": "message", "role": "assistant", "phase": phase, "content": "It is four."}
        for phase in ("commentary", "final_answer")
    ]
    assert said(ask(served, *phases, "Repeat only the number.")) == "four"


def test_tools(served: httpx.Client) -> None:
    for stream in (False, True):
        response = ask(served, WEATHER, tools=[TOOL], stream=stream)
        (item,) = response["output"]
        assert (item["type"], item["name"]) == ("function_call", "get_weather")
        assert json.loads(item["arguments"]) == {"location": "San Francisco, CA"}
    for event in ("delta", "done"):
        assert f"response.function_call_arguments.{event}" in response["kinds"]
    assert response["kinds"].count("response.output_item.added") == 1


def test_a_call_and_its_output(served: httpx.Client) -> None:
    choice = {"type": "function", "name": "get_weather"}
    first = ask(served, TEMPERATURE, tools=[TOOL], tool_choice=choice)
    (call,) = first["output"]
    assert call["type"] == "function_call"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "64 degrees"}
    assert ask(served, result, previous_response_id=first["id"])["output"]


def test_a_response_goes_on_from_another(served: httpx.Client) -> None:
    first = ask(served, "Remember this code word: papaya. Reply with only OK.")
    asked = "What code word did I ask you to remember?"
    second = ask(served, asked, previous_response_id=first["id"])
    assert said(second) == "Papaya."
    assert second["previous_response_id"] == first["id"]


def test_a_compaction_stands_for_its_conversation(served: httpx.Client) -> None:
    said = {"type": "message", "role": "assistant", "content": "The launch is Tuesday."}
    asked = {"type": "message", "role": "user", "content": "We launch on Tuesday."}
    body = {"model": "scripted", "prompt_cache_key": "a", "input": [asked, said]}
    answer = served.post("/v1/responses/compact", json=body, timeout=300)
    compacted = answer.raise_for_status().json()
    jsonschema.validate(compacted, COMPACTED)
    assert answer.headers["x-ignored-params"] == "prompt_cache_key"
    later = ask(served, *compacted["output"], "Say hello.", store=False)
    assert later["output"]
    counted = served.post(
        "/v1/responses/input_tokens", json={"model": "scripted", "input": compacted["output"][:1]}
    )
    assert counted.status_code == 200, counted.text
    missing = served.post("/v1/responses/compact", json={"input": [asked]})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    foreign = [{**compacted["output"][0], "encrypted_content": "gAAAAABpM0Yj"}]
    refused = served.post("/v1/responses", json={"model": "scripted", "input": foreign})
    assert refused.json()["error"]["param"] == "input[0].encrypted_content"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {
            "type": "input_file",
            "filename": "a.pdf",
            "file_data": "data:text/plain;base64,JQ==",
        },
    ],
)
def test_images_and_files_are_refused_by_name(served: httpx.Client, part: dict[str, str]) -> None:
    content = [{"type": "input_text", "text": "What do you see?"}, part]
    item = {"type": "message", "role": "user", "content": content}
    answer = served.post("/v1/responses", json={"model": "scripted", "input": [item]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_content_type")
    assert error["param"] == "input[0].content[1].type"
    assert repr(part["type"]) in error["message"]
