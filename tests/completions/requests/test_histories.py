"""What OpenAI's client returns, sent back as it is: a real client, and answers made of events."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from pytest_django.fixtures import Settings

from completions.catalog import model_files
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, EndEvent
from completions.responses import sse
from completions.responses.chat import ChatResponseContext
from tests.completions.requests.validating import prepared

PATH = "/v1/chat/completions"
END = EndEvent(2, "completed", None, Usage(1, 1, 0))
CUT = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ro'
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.id }} {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{{ (tools or []) | length }}"
)


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    days: int


TOOL = openai.pydantic_function_tool(Weather, name="weather")
GO: Any = {"role": "user", "content": "Go."}


class Service:
    """Answers a client's requests with texts, as the endpoint makes answers of a job's events."""

    def __init__(self) -> None:
        self.text = "Sun."
        self.finish_reason = "stop"
        self.prompt = ""
        self.ignored: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        made = prepared(body, PATH)
        (ids,) = made.request.job.prompts
        self.prompt = made.request.model.files.tokenizer.decode(ids)
        self.ignored = list(made.request.ignored)
        view, half = made.context, len(self.text) // 2
        assert isinstance(view, ChatResponseContext)
        events = [
            ChoiceEvent(0, [1], self.text[:half], None, None),
            ChoiceEvent(0, [2], self.text[half:], self.finish_reason, None),
        ]
        if not body.get("stream"):
            collected = view.make_collected()
            collected.add(events)
            return httpx.Response(200, json=collected.make_response(END.usage))
        chunks = view.make_chunks()
        frames = [
            sse.make_frame(chunk)
            for _, chunk in (*chunks.make_chunks(events), *chunks.make_end(END))
        ]
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, content=b"".join([*frames, sse.DONE]), headers=headers)


@pytest.fixture
def service(served: None, tiny_model: Path, tmp_path: Path, settings: Settings) -> Service:
    folder = tmp_path / "caller"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text('{"vocab_size": 260, "max_position_embeddings": 8192}')
    settings.MODELS_FILE = tmp_path / "caller.toml"
    settings.MODELS_FILE.write_text(f'[models.m]\npath = "{folder}"\ntool_format = "hermes"\n')
    model_files.load.cache_clear()
    return Service()


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    transport = httpx.Client(transport=httpx.MockTransport(service))
    with openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=transport) as client:
        yield client


def plain(client: openai.OpenAI, **call: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[GO], **call).choices[0].message


def parsed(client: openai.OpenAI, **call: Any) -> Any:
    return client.chat.completions.parse(model="m", messages=[GO], **call).choices[0].message


def streamed(client: openai.OpenAI, **call: Any) -> Any:
    with client.chat.completions.stream(model="m", messages=[GO], **call) as stream:
        return stream.get_final_completion().choices[0].message


def gathered(client: openai.OpenAI, **call: Any) -> Any:
    """The message that clients put together from raw deltas, with the index of each call."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in client.chat.completions.create(model="m", messages=[GO], stream=True, **call):
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                calls = message.setdefault("tool_calls", [])
                if piece.id is not None:
                    calls.append(piece.model_dump())
                else:
                    assert piece.function is not None
                    calls[piece.index]["function"]["arguments"] += piece.function.arguments
    return message


def as_sent(message: Any) -> dict[str, Any]:
    """What a client sends back of it."""
    sent: dict[str, Any]
    sent = message if isinstance(message, dict) else message.model_dump(warnings=False)
    return sent


@pytest.mark.parametrize("returned", [plain, parsed, streamed, gathered])
def test_calls_are_sent_back(service: Service, client: openai.OpenAI, returned: Any) -> None:
    call = ToolCall("weather", {"city": "Rome", "days": 2})
    service.text = TOOL_FORMATS["hermes"].write(call)
    message = as_sent(returned(client, tools=[TOOL]))
    (made,) = message["tool_calls"]
    messages: list[Any] = [
        GO,
        message,
        {"role": "tool", "tool_call_id": made["id"], "content": "Sun."},
    ]
    service.text = "Sun."
    answer = client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
    assert answer.choices[0].message.content == "Sun."
    written = f'{made["id"]} {{"city": "Rome", "days": 2}}'
    assert service.prompt == f"[user]Go.[assistant]{written}[tool]Sun.1"
    known = {"parsed_arguments", "index"}
    assert {path.rpartition(".")[2] for path in service.ignored} <= known


CUSTOM: Any = {
    "type": "custom",
    "custom": {
        "name": "sql",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "regex", "definition": 'SELECT "[a-z]+";\\n'},
        },
    },
}
INPUT = 'SELECT "name";\n'


def test_calls_of_custom_tools_are_sent_back(service: Service, client: openai.OpenAI) -> None:
    service.text = TOOL_FORMATS["hermes"].write(ToolCall("sql", {"input": INPUT}))
    message = plain(
        client, tools=[CUSTOM], tool_choice={"type": "custom", "custom": {"name": "sql"}}
    )
    (made,) = message.tool_calls
    assert (made.type, made.custom.name, made.custom.input) == ("custom", "sql", INPUT)
    messages: list[Any] = [
        GO,
        message,
        {"role": "tool", "tool_call_id": made.id, "content": "Rome"},
    ]
    service.text = "Done."
    client.chat.completions.create(model="m", messages=messages, tools=[CUSTOM, TOOL])
    written = json.dumps({"input": INPUT})
    assert service.prompt == f"[user]Go.[assistant]{made.id} {written}[tool]Rome2"
    assert service.ignored == []


def test_the_input_of_a_custom_tool_is_streamed(service: Service, client: openai.OpenAI) -> None:
    calls = [ToolCall("sql", {"input": INPUT}), ToolCall("weather", {"city": "Rome", "days": 2})]
    service.text = TOOL_FORMATS["hermes"].write(*calls)
    deltas: list[dict[str, Any]] = []
    for chunk in client.chat.completions.create(
        model="m", messages=[GO], tools=[CUSTOM, TOOL], stream=True
    ):
        for choice in chunk.choices:
            deltas += [each.model_dump() for each in choice.delta.tool_calls or ()]
    first, *others = [each for each in deltas if each["index"] == 0]
    assert (first["type"], first["custom"]) == ("custom", {"name": "sql", "input": ""})
    assert "".join(each["custom"]["input"] for each in others) == INPUT
    assert next(each["function"]["name"] for each in deltas if each["index"] == 1) == "weather"


@pytest.mark.parametrize("returned", [plain, gathered])
def test_a_call_that_was_cut_is_sent_back(
    service: Service, client: openai.OpenAI, returned: Any
) -> None:
    service.text, service.finish_reason = CUT, "length"
    message = as_sent(returned(client, tools=[TOOL], max_tokens=9))
    (made,) = message["tool_calls"]
    assert made["function"]["arguments"] == '{"city": "Ro'
    messages: list[Any] = [GO, message, GO]
    client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
    written = f'{made["id"]} "{{\\"city\\": \\"Ro"'
    assert service.prompt == f"[user]Go.[assistant]{written}[user]Go.1"


@pytest.mark.parametrize("returned", [parsed, streamed])
def test_a_parsed_answer_is_sent_back(
    service: Service, client: openai.OpenAI, returned: Any
) -> None:
    service.text = '{"city":"Rome","days":2}'
    message = returned(client, response_format=Weather)
    assert message.parsed == Weather(city="Rome", days=2)
    messages: list[Any] = [GO, as_sent(message), GO]
    client.chat.completions.create(model="m", messages=messages)
    assert service.prompt == f"[user]Go.[assistant]{service.text}[user]Go.0"
    assert service.ignored == ["messages[1].parsed"]


@pytest.mark.parametrize("returned", [plain, parsed, streamed, gathered])
def test_an_answer_is_sent_back(service: Service, client: openai.OpenAI, returned: Any) -> None:
    message = returned(client)
    for form in (message, as_sent(message)):
        messages: list[Any] = [GO, form, GO]
        client.chat.completions.create(model="m", messages=messages)
        assert service.prompt == "[user]Go.[assistant]Sun.[user]Go.0"
        assert service.ignored == []
