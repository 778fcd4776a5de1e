"""Chat completions of the demo model through the official client."""

import json

import openai
import pytest

from tests.acceptance.chat_client import (
    ANSWER_SCHEMA,
    HELLO,
    NOW,
    ROME,
    WEATHER,
    answered,
    both,
    streamed,
)
from tests.acceptance.service import MODEL, ended_job

pytestmark = pytest.mark.acceptance


# The demo model ---------------------------------------------------------------------------------


def test_a_conversation(client):
    longest = {"max_tokens": 8, "extra_body": {"min_tokens": 8}}
    choice = both(client, model=MODEL, messages=HELLO, temperature=0, **longest)
    assert choice["content"]
    assert choice["finish"] == "length"


def test_n_seeds_and_stops(client):
    call = {
        "model": MODEL, "messages": HELLO, "max_completion_tokens": 16, "n": 3, "seed": 5,
        "temperature": 1.2, "stop": ["."], "top_p": 0.95,
    }  # fmt: skip
    one, other = answered(client, **call), streamed(client, **call)
    assert [c["content"] for c in one["choices"]] == [c["content"] for c in other["choices"]]
    assert len({choice["content"] for choice in one["choices"]}) > 1
    assert "." not in "".join(choice["content"] for choice in one["choices"])


def test_response_format(client):
    choice = both(
        client,
        model=MODEL, messages=HELLO, max_tokens=40, temperature=0,
        response_format={
            "type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER_SCHEMA},
        },
    )  # fmt: skip
    assert set(json.loads(choice["content"])) == {"answer"}
    assert choice["finish"] == "stop"


def test_a_required_call_of_a_real_model(client):
    choice = both(
        client, model=MODEL, messages=[{"role": "user", "content": "Weather in Rome for 2 days?"}],
        tools=[ROME, NOW], tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=80, temperature=0,
    )  # fmt: skip
    (call,) = choice["calls"]
    assert call[0] == "get_weather"
    assert set(json.loads(call[1])) == {"city", "days"}
    assert choice["finish"] == "tool_calls"


def test_a_conversation_with_a_tools_answer(client):
    made = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    call = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
    call["extra_body"] = {"regex": "[a-z]{3,20}"}
    assert both(client, tools=[NOW], tool_choice="none", **call)["content"]


def test_log_probabilities(client):
    call = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "temperature": 0, "logprobs": True,
            "top_logprobs": 2, "extra_body": {"min_tokens": 5}}  # fmt: skip
    client.chat.completions.create(**call)  # the others find the prompt in the prefix cache
    (choice,) = client.chat.completions.create(**call).choices
    listed = choice.logprobs.content
    assert len(listed) == 5
    assert b"".join(bytes(each.bytes) for each in listed).decode() == choice.message.content
    for each in listed:
        assert each.top_logprobs[0].logprob == each.logprob <= 0
        assert len(each.top_logprobs) == 2
    chunks = client.chat.completions.create(**call, stream=True)
    found = [
        each.logprob
        for chunk in chunks
        for choice in chunk.choices
        for each in (choice.logprobs.content if choice.logprobs else ())
    ]
    assert found == pytest.approx([each.logprob for each in listed], abs=0.05)


def test_a_raw_prompt(client, http, tokenize):
    body = {"model": MODEL, "max_tokens": 6, "temperature": 0, "top_k": -1, "ignore_eos": True}
    ids = tokenize("Once upon a time")
    texts = [
        http.post("/v1/chat/completions", json={**body, **prompt}).json()["choices"][0]["message"]
        for prompt in ({"prompt": "Once upon a time"}, {"prompt": ids}, {"input_ids": ids})
    ]
    completion = client.completions.create(
        model=MODEL, prompt=ids, max_tokens=6, temperature=0, extra_body={"ignore_eos": True}
    )
    assert [text["content"] for text in texts] == [completion.choices[0].text] * 3


def test_background_poll_and_resume(http):
    body = {"model": MODEL, "messages": HELLO, "min_tokens": 8, "max_tokens": 8, "background": True}
    accepted = http.post("/v1/chat/completions", json=body)
    assert accepted.status_code == 202
    path = accepted.headers["Location"]
    assert path == f"/v1/chat/completions/{accepted.json()['id']}"
    done = ended_job(http, path)
    assert (done["status"], done["object"]) == ("completed", "chat.completion")
    whole = http.get(path, params={"stream": "true"}).text
    *frames, done, end = whole.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    for after in (1, len(frames) // 2):
        rest = http.get(path, params={"stream": "true", "starting_after": after}).text
        assert rest.split("\n\n") == [*frames[after:], done, end]
    assert http.get(path.replace("/chat", "")).status_code == 404
    assert http.post(f"{path}/cancel").json()["status"] == "completed"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"max_tokens": 5000}, "messages"),
        ({"thinking": {"type": "enabled"}}, "thinking.type"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_errors_name_the_place(client, change, param):
    call = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **change}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            messages=call.pop("messages"), model=call.pop("model"), extra_body=call
        )
    assert caught.value.param == param


def test_what_the_client_parses_and_streams_goes_back(client):
    call = {"model": MODEL, "tools": [ROME], "tool_choice": "required", "max_tokens": 200}
    call |= {"parallel_tool_calls": False, "temperature": 0}
    parsed = client.chat.completions.parse(messages=HELLO, **call).choices[0].message
    with client.chat.completions.stream(messages=HELLO, **call) as stream:
        gathered = stream.get_final_completion().choices[0].message
    for message in (parsed, gathered):
        (made,) = message.tool_calls
        assert made.function.parsed_arguments["city"] in ("Rome", "Paris")
        result = {"role": "tool", "tool_call_id": made.id, "content": "Sun."}
        again = client.chat.completions.create(
            model=MODEL, messages=[*HELLO, message.model_dump(), result], max_tokens=4
        )
        assert again.usage.completion_tokens
