"""Chat completions through the official client: the demo model, and scripted models that call
tools in each format and think."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from tests.acceptance.scripted_model import THINK, THOUGHT, save_scripted_model
from tests.acceptance.service import MODEL, Installation, ended_job

pytestmark = pytest.mark.acceptance

HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
PARIS = ToolCall("get_weather", {"city": 'Par"is\n', "days": 3})
CLOCK = ToolCall("now", {"zone": "UTC"})
ROME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
"""Its parameters bound every value, so that the arguments end with any model."""
ANSWER_SCHEMA = {
    "type": "object", "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["answer"], "additionalProperties": False,
}  # fmt: skip


def streamed(client: openai.OpenAI, **call: Any) -> dict[str, Any]:
    """Stream a call. Returns its choices as messages put together from their deltas."""
    messages: dict[int, dict[str, Any]] = {}
    numbers, roles, usage = [], 0, None
    for chunk in client.chat.completions.create(
        **call, stream=True, stream_options={"include_usage": True}
    ):
        assert chunk.object == "chat.completion.chunk"
        numbers.append(chunk.sequence_number)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            message = messages.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None}
            )
            assert message["finish"] is None, "nothing follows a finish"
            roles += choice.delta.role is not None
            message["content"] += choice.delta.content or ""
            message["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for piece in choice.delta.tool_calls or ():
                if piece.function.name is not None:
                    assert (piece.index, piece.type) == (len(message["calls"]), "function")
                    assert piece.function.arguments == ""
                    message["calls"].append([piece.id, piece.function.name, ""])
                message["calls"][piece.index][2] += piece.function.arguments
            message["finish"] = choice.finish_reason
    assert numbers == list(range(1, len(numbers) + 1))
    assert roles == len(messages), "the role comes once per choice"
    return {"choices": [messages[i] for i in sorted(messages)], "usage": usage}


def answered(client: openai.OpenAI, **call: Any) -> dict[str, Any]:
    """Send a call without streaming. Returns the same as `streamed`."""
    completion = client.chat.completions.create(**call)
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    choices = [
        {
            "content": choice.message.content or "",
            "reasoning": getattr(choice.message, "reasoning_content", None) or "",
            "calls": [
                [made.id, made.function.name, made.function.arguments]
                for made in choice.message.tool_calls or ()
            ],
            "finish": choice.finish_reason,
        }
        for choice in completion.choices
    ]
    return {"choices": choices, "usage": completion.usage}


def both(client: openai.OpenAI, **call: Any) -> dict[str, Any]:
    """Return the only choice, after a check that a stream and a whole answer agree.

    Both find the prompt in the prefix cache: bfloat16 would sum in another order otherwise.
    """
    answered(client, **call)
    one, other = answered(client, **call), streamed(client, **call)
    for result in (one, other):
        result["usage"] = result["usage"].completion_tokens
        for choice in result["choices"]:
            ids = [made.pop(0) for made in choice["calls"]]
            assert len(set(ids)) == len(ids)
            assert all(made.startswith("call_") for made in ids)
    assert one == other
    (choice,) = one["choices"]
    return choice


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


# Scripted models --------------------------------------------------------------------------------


FORMS = ("hermes", "llama3", "glm", "qwen3_coder", "kimi_k2")


def _scripts() -> dict[str, str]:
    scripts = {
        "sum": f"{THINK}\ntwo and two\n{THOUGHT}\n\nFour.",
        "json": f'{THINK}simple{THOUGHT}\n{{"answer":4}}',
        "long": f"{THINK}{'on and ' * 30}",
        "plain": "No thoughts.",
    }
    for name in FORMS:
        form = TOOL_FORMATS[name]
        paris = form.write(PARIS)
        scripts[f"{name} one"] = f"I look.\n{paris}"
        scripts[f"{name} two"] = form.write(PARIS, CLOCK)
        scripts[f"{name} thought"] = f"{THINK}ask{THOUGHT}\n\n{paris}"
    return scripts


class ScriptedInstallation(Installation):
    """One scripted folder, served under the name of each format."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, QUIRE_SHUTDOWN_GRACE="1")
        folder = save_scripted_model(home / "scripted", _scripts())
        tables = [
            f'[models.{name}]\npath = "{folder}"\ndtype = "float32"\nmax_num_seqs = 4\n'
            f'max_model_len = {320 * len(_scripts())}\ntool_format = "{name}"\n'
            f'think_tags = ["{THINK}", "{THOUGHT}"]\nthinking_switch = "enable_thinking"\n'
            for name in FORMS
        ]
        (home / "models.toml").write_text("\n".join(tables))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> Iterator[openai.OpenAI]:
    with ScriptedInstallation(tmp_path_factory.mktemp("scripted")) as installation:
        for name in FORMS:
            installation.wait_served(name)
        with installation.client() as client:
            yield client


def ask(client: openai.OpenAI, form: str, script: str, **call: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": script}]
    call = {"max_tokens": 300, "temperature": 0, **call}
    return both(client, model=form, messages=messages, **call)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_calls_come_back(scripted, form):
    choice = ask(scripted, form, f"{form} one", tools=[WEATHER, NOW])
    ((name, arguments),) = choice["calls"]
    assert (name, json.loads(arguments)) == (PARIS.name, PARIS.arguments)
    assert (choice["content"], choice["finish"]) == ("I look.", "tool_calls")
    choice = ask(scripted, form, f"{form} two", tools=[WEATHER, NOW], tool_choice="required")
    assert [(n, json.loads(a)) for n, a in choice["calls"]] == [
        (PARIS.name, PARIS.arguments),
        (CLOCK.name, CLOCK.arguments),
    ]
    assert choice["content"] == ""


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_stops_do_not_cut_calls(scripted, form):
    stop = ["</tool_call>", "}", '"', "ask"]
    choice = ask(scripted, form, f"{form} thought", tools=[WEATHER], stop=stop)
    ((name, arguments),) = choice["calls"]
    assert (name, json.loads(arguments)) == (PARIS.name, PARIS.arguments)
    assert (choice["reasoning"], choice["content"]) == ("ask", "")
    assert choice["finish"] == "tool_calls"


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_one_call_where_they_may_not_be_parallel(scripted, form):
    choice = ask(
        scripted, form, f"{form} two", tools=[WEATHER, NOW], parallel_tool_calls=False
    )  # fmt: skip
    assert [name for name, _ in choice["calls"]] == ["get_weather"]
    assert choice["finish"] == "tool_calls"


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_thoughts_before_a_call(scripted, form):
    choice = ask(scripted, form, f"{form} thought", tools=[WEATHER])
    assert (choice["reasoning"], choice["content"]) == ("ask", "")
    assert [name for name, _ in choice["calls"]] == ["get_weather"]


@pytest.mark.long
def test_a_call_cut_short_keeps_its_length_finish(scripted):
    choice = ask(scripted, "hermes", "hermes one", tools=[WEATHER], max_tokens=70)
    assert choice["finish"] == "length"
    assert choice["calls"][0][0] == "get_weather"


@pytest.mark.long
def test_without_tools_a_call_is_text(scripted):
    choice = ask(scripted, "hermes", "hermes one", tools=[WEATHER], tool_choice="none")
    assert choice["calls"] == []
    assert "<tool_call>" in choice["content"]


@pytest.mark.long
def test_thoughts_are_separated(scripted):
    choice = ask(scripted, "hermes", "sum")
    assert (choice["reasoning"], choice["content"]) == ("two and two", "Four.")
    usage = answered(
        scripted, model="hermes", messages=[{"role": "user", "content": "sum"}], max_tokens=300
    )["usage"]
    assert usage.completion_tokens_details.reasoning_tokens == 15
    together = ask(scripted, "hermes", "sum", extra_body={"separate_reasoning": False})
    assert together["reasoning"] == ""
    assert together["content"].endswith("Four.")
    whole = ask(scripted, "hermes", "sum", extra_body={"stream_reasoning": False})
    assert whole["reasoning"] == "two and two"


@pytest.mark.long
def test_thoughts_then_a_constrained_answer(scripted):
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER_SCHEMA}}
    choice = ask(scripted, "hermes", "json", response_format=wanted)
    assert (choice["reasoning"], json.loads(choice["content"])) == ("simple", {"answer": 4})
    off = {"thinking": {"type": "disabled"}}
    choice = ask(scripted, "hermes", "json", response_format=wanted, extra_body=off)
    assert (choice["reasoning"], set(json.loads(choice["content"]))) == ("", {"answer"})


@pytest.mark.long
def test_a_budget_ends_thoughts(scripted):
    limited = {"thinking": {"type": "enabled", "budget_tokens": 10}}
    choice = ask(scripted, "hermes", "long", extra_body=limited, max_tokens=30)
    assert choice["reasoning"] == "on and on"
    assert choice["content"]


@pytest.mark.long
def test_an_answer_without_thoughts(scripted):
    choice = ask(scripted, "hermes", "plain")
    assert (choice["reasoning"], choice["content"]) == ("", "No thoughts.")
