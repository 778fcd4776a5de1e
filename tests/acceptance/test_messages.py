"""The Messages API through the official client: the demo model, and a small one that calls tools
and thinks."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL

pytestmark = pytest.mark.acceptance

HELLO: Any = [{"role": "user", "content": "Say hello."}]
GREEDY: dict[str, Any] = {"temperature": 0}
SHORT: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "extra_body": GREEDY}
TOOL: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def messages(service: Installation) -> Iterator[anthropic.resources.Messages]:
    with anthropic.Anthropic(base_url=service.url, api_key=service.key) as client:
        yield client.messages


def test_a_message_and_its_stream_agree(messages: anthropic.resources.Messages) -> None:
    whole = messages.create(**SHORT, messages=HELLO)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 6)
    assert whole._request_id
    with messages.stream(**SHORT, messages=HELLO) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert [block.model_dump(exclude={"parsed_output"}) for block in final.content] == [
        block.model_dump() for block in whole.content
    ]
    assert final.stop_reason == whole.stop_reason
    used, streamed = whole.usage, final.usage
    assert streamed.output_tokens == used.output_tokens
    everything = [
        each.input_tokens + (each.cache_read_input_tokens or 0) for each in (used, streamed)
    ]
    counted = messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
    assert everything == [counted, counted]


def test_a_conversation_goes_on(messages: anthropic.resources.Messages) -> None:
    one = messages.create(**SHORT, messages=HELLO)
    turns: Any = [*HELLO, {"role": "assistant", "content": one.content}]
    two = messages.create(**SHORT, messages=[*turns, {"role": "user", "content": "Again."}])
    assert two.content[0].type == "text"
    rest = messages.create(**SHORT, messages=turns)  # continues the last turn
    assert rest.content
    whole = messages.create(**{**SHORT, "max_tokens": 12}, messages=HELLO)
    texts = ["".join(getattr(block, "text", "") for block in each.content) for each in (one, rest)]
    assert whole.content[0].type == "text"
    assert whole.content[0].text.startswith(texts[0])


def test_stop_sequences(messages: anthropic.resources.Messages) -> None:
    body = {"temperature": 0, "ignore_eos": True}
    with pytest.raises(anthropic.BadRequestError, match="ignore_eos"):
        messages.create(model=MODEL, max_tokens=6, messages=HELLO, extra_body=body)
    whole = messages.create(**SHORT, messages=HELLO)
    assert whole.content[0].type == "text"
    middle = whole.content[0].text[2:5]
    cut = messages.create(**SHORT, messages=HELLO, stop_sequences=[middle])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", middle)


def test_tools_are_called_and_their_results_read(
    service: Installation, messages: anthropic.resources.Messages
) -> None:
    service.wait_served(SMALL)
    asked: dict[str, Any] = {
        "model": SMALL, "max_tokens": 60, "tools": [TOOL], "thinking": {"type": "disabled"},
    }  # fmt: skip
    turns: Any = [{"role": "user", "content": "Rome?"}]
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    made = messages.create(**asked, messages=turns, tool_choice=choice)
    (call,) = [block for block in made.content if block.type == "tool_use"]
    assert made.stop_reason in ("tool_use", "max_tokens")  # noise may follow the call
    assert call.input.keys() == {"city", "days"}
    with messages.stream(**asked, messages=turns, tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    (again,) = [block for block in streamed.content if block.type == "tool_use"]
    assert again.input.keys() == {"city", "days"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sun."}
    turns += [{"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    named: Any = {"type": "tool", "name": TOOL["name"]}
    then = messages.create(**asked, messages=turns, tool_choice=named)
    assert "tool_use" in [block.type for block in then.content]
    assert then.usage.input_tokens + (then.usage.cache_read_input_tokens or 0) > (
        made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)
    )


def test_thoughts_are_blocks(service: Installation, messages: anthropic.resources.Messages) -> None:
    service.wait_served(SMALL)
    asked: dict[str, Any] = {"model": SMALL, "max_tokens": 40, "extra_body": {"seed": 1}}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 8}
    with messages.stream(**asked, messages=HELLO) as stream:
        deltas = [event.thinking for event in stream if event.type == "thinking"]
        message = stream.get_final_message()
    first = message.content[0]
    assert first.type == "thinking"
    assert first.thinking == "".join(deltas)
    assert len(first.signature) == 64
    assert message.usage.output_tokens_details is not None
    assert 0 < message.usage.output_tokens_details.thinking_tokens <= 10
    turns: Any = [
        *HELLO,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": "Again."},
    ]
    assert messages.create(**asked, messages=turns).content


def test_a_schema(messages: anthropic.resources.Messages) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form: Any = {"format": {"type": "json_schema", "schema": schema}}
    made = messages.create(**{**SHORT, "max_tokens": 40}, messages=HELLO, output_config=form)
    assert made.content[0].type == "text"
    assert '"ok"' in made.content[0].text


@pytest.mark.parametrize(
    ("body", "error", "kind"),
    [
        ({"model": "none"}, anthropic.NotFoundError, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         anthropic.BadRequestError, "invalid_request_error"),
    ],
)  # fmt: skip
def test_refusals_are_the_clients_own_errors(
    messages: anthropic.resources.Messages,
    body: Any,
    error: type[anthropic.APIStatusError],
    kind: Any,
) -> None:
    with pytest.raises(error) as caught:
        messages.create(**{**SHORT, "messages": HELLO, **body})
    assert caught.value.type == kind
    assert caught.value.request_id
    assert caught.value.api_message
    assert caught.value.error_code


def test_a_wrong_key(service: Installation) -> None:
    with (
        anthropic.Anthropic(base_url=service.url, api_key="sk-wrong") as client,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        client.messages.create(**SHORT, messages=HELLO)
    assert caught.value.type == "authentication_error"


def test_a_key_in_its_other_header(service: Installation) -> None:
    body = {**SHORT, "messages": HELLO, "system": "x" * 200_000}
    del body["extra_body"]
    for key, status in ((service.key, 400), ("sk-wrong", 401)):  # too long for the model
        answer = httpx.post(
            f"{service.url}/v1/messages", json=body, headers={"x-api-key": key}, timeout=60
        )
        assert answer.status_code == status
        assert answer.json()["request_id"] == answer.headers["request-id"]
