"""WebSocket connections to /v1/responses: through the official client, as Open Responses' suite
tests them, and at their ends."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import jsonschema
import pytest
from openai import OpenAI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.acceptance.service import MODEL, Installation, wait_until

pytestmark = pytest.mark.acceptance

ERROR_EVENT = {
    "type": "object",
    "required": ["type", "status", "error"],
    "properties": {
        "type": {"const": "error"},
        "status": {"type": "integer"},
        "error": {
            "type": "object",
            "required": ["type", "code", "message"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
        },
    },
}
LAST = ("response.completed", "response.incomplete", "response.failed", "error")
SHORT: dict[str, Any] = {"model": MODEL, "max_output_tokens": 4, "temperature": 0}


@contextmanager
def open_socket(http: httpx.Client, path: str = "/v1/responses", **headers: str) -> Iterator[Any]:
    url = f"ws://{http.base_url.host}:{http.base_url.port}{path}"
    given = {"Authorization": http.headers["Authorization"], **headers}
    with connect(url, additional_headers=given, max_size=None) as socket:
        yield socket


def read(socket: ClientConnection) -> list[dict[str, Any]]:
    """Read the events of a response, whose numbers and end are checked."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in LAST:
        events.append(json.loads(socket.recv(timeout=120)))
    if events[-1]["type"] == "error":
        jsonschema.validate(events[-1], ERROR_EVENT)
    else:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def ask(socket: ClientConnection, text: object = "Hi", **fields: Any) -> dict[str, Any]:
    """Return the response to an event, or the error event."""
    event = {"type": "response.create", **SHORT, "input": text, **fields}
    socket.send(json.dumps(event))
    last = read(socket)[-1]
    answer: dict[str, Any] = last.get("response", last)
    return answer


def code(event: dict[str, Any]) -> tuple[int, str, str | None]:
    return event["status"], event["error"]["code"], event["error"]["param"]


@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")  # in openai
def test_the_official_client_connects(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="Say hello.", max_output_tokens=4)
        for event in connection:
            assert event.type != "error"
            if event.type in ("response.completed", "response.incomplete"):
                first = event.response
                break
        connection.response.create(model=MODEL, input="Again.", previous_response_id="resp_x")
        refused = connection.recv()
        assert refused.type == "error"
        assert refused.error.code == "previous_response_not_found"
    assert client.responses.retrieve(first.id).output_text == first.output_text


def test_a_stored_response_is_streamed_again(http: httpx.Client) -> None:
    with open_socket(http) as socket:
        socket.send(json.dumps({"type": "response.create", **SHORT, "input": "Hi"}))
        events = read(socket)
        stored = events[-1]["response"]
        query = f"/v1/responses/{stored['id']}?stream=true&starting_after=2"
        lines = http.get(query).text.split("\n")
        again = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert again == events[3:]
        later = ask(socket, "And?", previous_response_id=stored["id"])
        assert later["usage"]["input_tokens"] > stored["usage"]["input_tokens"]


def test_responses_follow_one_another(http: httpx.Client) -> None:
    """The suite: one response, two in turn, and one that goes on from an unstored one."""
    with open_socket(http) as socket:
        first = ask(socket, "Remember: cobalt.", store=False)
        assert http.get(f"/v1/responses/{first['id']}").status_code == 404
        second = ask(socket, "Which word?", store=False, previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        third = ask(socket, "And?", previous_response_id=second["id"])
        items = http.get(f"/v1/responses/{third['id']}/input_items").json()["data"]
        assert len(items) == 5  # what no other response stores
    after = {**SHORT, "input": "Go on.", "previous_response_id": third["id"]}
    assert http.post("/v1/responses", json=after).status_code == 200


def test_another_connection_does_not_know_an_unstored_response(http: httpx.Client) -> None:
    with open_socket(http) as socket:
        first = ask(socket, store=False)
    with open_socket(http) as socket:
        missing = ask(socket, store=False, previous_response_id=first["id"])
        assert code(missing) == (400, "previous_response_not_found", "previous_response_id")
        assert ask(socket, "Then anew.", store=False)["output"]


def test_a_failed_continuation_forgets_the_response(http: httpx.Client) -> None:
    with open_socket(http) as socket:
        first = ask(socket, store=False)
        later: dict[str, Any] = {"store": False, "previous_response_id": first["id"]}
        assert ask(socket, temperature=9)["status"] == 400  # another chain
        assert ask(socket, **later, temperature=9)["error"]["param"] == "temperature"
        assert code(ask(socket, **later))[1] == "previous_response_not_found"
        second = ask(socket, store=False)["id"]
        output = {"type": "function_call_output", "call_id": "call_missing", "output": "a"}
        refused = ask(socket, [output], store=False, previous_response_id=second)
        assert refused["error"]["param"] == "input[0].call_id"
        missing = ask(socket, store=False, previous_response_id=second)
        assert code(missing)[1] == "previous_response_not_found"


@pytest.mark.wide
def test_a_compaction_begins_a_chain(http: httpx.Client) -> None:
    items = [{"role": "user", "content": "We launch on Tuesday."}]
    body = {"model": MODEL, "input": items}
    window = http.post("/v1/responses/compact", json=body, timeout=300).json()["output"]
    with open_socket(http) as socket:
        assert ask(socket, [*window, {"role": "user", "content": "When?"}], store=False)["output"]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", (400, "invalid_json", None)),
        (b"{}", (400, "invalid_request", None)),
        ("{}", (400, "unsupported_value", "type")),
        ('{"type": "response.steer"}', (400, "unsupported_value", "type")),
        ('{"type": "response.create", "stream": false}', (400, "unsupported_value", "stream")),
        ('{"type": "response.create", "background": true}',
         (400, "unsupported_value", "background")),
        ('{"type": "response.create", "generate": false}', (400, "unsupported_value", "generate")),
        ('{"type": "response.create", "stream_id": "a"}', (400, "unknown_parameter", "stream_id")),
        ('{"type": "response.create", "model": "x", "input": "a"}',
         (404, "model_not_found", "model")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_an_event(
    http: httpx.Client, frame: str | bytes, expected: tuple[int, str, str | None]
) -> None:
    with open_socket(http) as socket:
        socket.send(frame)
        assert code(read(socket)[-1]) == expected
        assert ask(socket)["output"]


def test_a_handshake_needs_a_key_and_the_path(http: httpx.Client) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        open_socket(http, Authorization="Bearer sk-no", Cookie="sessionid=a"),
    ):
        pass
    response = refused.value.response
    assert response.status_code == 401
    assert json.loads(response.body or b"")["error"]["code"] == "invalid_api_key"
    assert response.headers["x-request-id"]
    for path, status in (("/v1/response", 404), ("/v1/models", 200), ("/v1/responses/resp_x", 404)):
        with pytest.raises(InvalidStatus) as refused, open_socket(http, path):
            pass
        assert refused.value.response.status_code == status
    assert http.get("/v1/responses").status_code == 405


def test_the_log_has_the_connection_and_its_responses(
    service: Installation, http: httpx.Client
) -> None:
    with open_socket(http) as socket:
        ask(socket)
        wait_until(lambda: "POST /v1/responses 200" in service.logs(), 30)
    wait_until(lambda: "GET /v1/responses 101" in service.logs(), 30)


def test_a_body_that_is_no_object_is_refused_as_over_http(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    error = http.post("/v1/responses", content="[]", headers=headers).json()["error"]
    with open_socket(http) as socket:
        socket.send("[]")
        assert read(socket)[-1]["error"].items() >= error.items()
