"""WebSocket connections over an application that answers at once, or when the test says."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from completions.exceptions import APIError
from completions.http import web_metrics
from completions.http.socket_turns import TURNS_EXTENSION, KeptTurns, OpenSockets
from project.server import web_sockets
from project.server.gateway import Gateway
from project.server.web_socket_protocol import SHUTDOWN

pytestmark = pytest.mark.filterwarnings("error")
KEYS = [(b"authorization", b"Bearer sk-a"), (b"cookie", b"a=b"), (b"upgrade", b"websocket")]
COMPLETED = orjson.dumps({"type": "response.completed", "response": {"id": "resp_1", "output": []}})
FAULT = orjson.dumps({"type": "error", "code": "queue_timeout", "error": {"message": "m"}})


class Connection:
    """A client's end of a connection."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.last = b"event: response.completed\ndata: " + COMPLETED + b"\n\n"
        self.hung_up = False

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        message = await receive()
        self.bodies.append(message["body"])
        if self.bodies[-1] == b"bad":
            raise APIError("invalid_json")
        headers = [(b"Content-Type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        first = b": keep-alive\nevent: response.created\ndata: {"
        await send({"type": "http.response.body", "body": first, "more_body": True})
        await send({"type": "http.response.body", "body": b"}\n\n", "more_body": True})
        ending = [asyncio.create_task(each()) for each in (self.may_end.wait, receive)]
        await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        self.hung_up = ending[1].done()
        ending[1].cancel()
        await send({"type": "http.response.body", "body": self.last, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def say(self, text: str) -> None:
        await self.came.put({"type": "websocket.receive", "text": text})

    async def hear(self) -> Any:
        message = await asyncio.wait_for(self.sent.get(), 10)
        return orjson.loads(message["text"]) if "text" in message else message


def make_process(max_sockets: int = 1) -> Any:
    return SimpleNamespace(kept_turns=KeptTurns(), sockets=OpenSockets(max_sockets))


async def open_(
    monkeypatch: Any, refusal: APIError | None = None, process: Any = None
) -> tuple[Connection, Any]:
    async def check(_handshake: Any) -> int:
        if refusal is not None:
            raise refusal
        return 7

    monkeypatch.setattr(web_sockets, "_check_key", check)
    connection = Connection()
    scope = {
        "type": "websocket", "path": "/v1/responses", "scheme": "wss", "headers": KEYS,
        "state": {"process": process or make_process()}, "client": None,
    }  # fmt: skip
    gateway = Gateway(connection.application, 100)
    serving = asyncio.create_task(gateway(scope, connection.came.get, connection.sent.put))
    return connection, serving


async def hang_up(connection: Connection, serving: Any) -> None:
    """Disconnect the client, and wait until its connection is no longer served."""
    await connection.came.put({"type": "websocket.disconnect"})
    await asyncio.wait_for(serving, 10)


async def test_an_event_is_a_request_and_its_stream_is_frames(monkeypatch):
    connection, serving = await open_(monkeypatch)
    accepted = await connection.hear()
    assert accepted["type"] == "websocket.accept"
    assert b"x-request-id" in dict(accepted["headers"])
    await connection.say("{}")
    assert await connection.hear() == {}
    assert (await connection.hear())["type"] == "response.completed"
    await connection.say("{ }")  # at once
    assert await connection.hear() == {}
    assert (await connection.hear())["type"] == "response.completed"
    assert connection.bodies == [b"{}", b"{ }"]
    scope = connection.scopes[0]
    assert (scope["type"], scope["method"], scope["scheme"]) == ("http", "POST", "https")
    names = [name for name, _ in scope["headers"]]
    assert names == [b"authorization", b"content-type", b"content-length"]
    assert scope["extensions"].keys() == {TURNS_EXTENSION}
    await connection.came.put({"type": "websocket.disconnect"})
    counted = web_metrics.requests.labels("GET", "/v1/responses", "101")._value.get()
    await asyncio.wait_for(serving, 10)
    assert web_metrics.requests.labels("GET", "/v1/responses", "101")._value.get() == counted + 1


async def test_errors_are_events(monkeypatch):
    connection, serving = await open_(monkeypatch)
    await connection.hear()
    await connection.say("bad")
    refused = await connection.hear()
    assert (refused["type"], refused["status"]) == ("error", 400)
    assert refused["error"]["code"] == "invalid_json"
    await connection.came.put({"type": "websocket.receive", "bytes": b"{}"})
    assert (await connection.hear())["error"]["code"] == "invalid_request"
    connection.last = b"event: error\ndata: " + FAULT + b"\n\n"
    await connection.say("{}")
    await connection.hear()
    fault = await connection.hear()
    assert (fault["status"], fault["error"]) == (504, {"message": "m"})
    await hang_up(connection, serving)


async def test_a_key_has_so_many_connections_at_a_time(monkeypatch):
    process = make_process(max_sockets=2)
    opened = [await open_(monkeypatch, process=process) for _ in range(3)]
    answers = [await connection.hear() for connection, _ in opened]
    assert [answer["type"] for answer in answers[:2]] == ["websocket.accept"] * 2
    assert answers[2]["status"] == 429
    assert dict(answers[2]["headers"])[b"retry-after"] == b"60"
    refusal = orjson.loads((await opened[2][0].sent.get())["body"])["error"]
    assert (refusal["code"], "has 2 WebSocket" in refusal["message"]) == (
        "too_many_web_sockets", True
    )  # fmt: skip
    await hang_up(*opened[0])
    last, serving = await open_(monkeypatch, process=process)
    assert (await last.hear())["type"] == "websocket.accept"
    await hang_up(*opened[1])
    await hang_up(last, serving)
    assert not process.sockets._by_key


async def test_a_handshake_is_refused_as_a_request(monkeypatch):
    connection, serving = await open_(monkeypatch, APIError("missing_api_key"))
    start, body = await connection.hear(), await connection.hear()
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert body["type"] == "websocket.http.response.body"
    assert orjson.loads(body["body"])["error"]["code"] == "missing_api_key"
    await asyncio.wait_for(serving, 10)


async def test_a_second_response_waits_and_a_hang_up_ends_the_first(monkeypatch):
    connection, serving = await open_(monkeypatch)
    connection.may_end.clear()
    await connection.hear()
    await connection.say("{}")
    await connection.hear()
    await connection.say("{}")
    assert (await connection.hear())["error"]["code"] == "response_in_progress"
    await hang_up(connection, serving)
    assert connection.hung_up
    assert len(connection.scopes) == 1


@pytest.mark.parametrize("is_late", [False, True])
async def test_the_end_waits_for_the_response(monkeypatch, is_late):
    """At the limit of 60 minutes, and when the server stops."""
    monkeypatch.setattr(web_sockets, "LIFETIME", 0.1 if is_late else 60.0)
    connection, serving = await open_(monkeypatch)
    connection.may_end.clear()
    await connection.hear()
    await connection.say("{}")
    await connection.hear()
    if not is_late:
        await connection.came.put({"type": SHUTDOWN})
    await asyncio.sleep(0.2)
    assert connection.sent.empty()
    connection.may_end.set()
    assert (await connection.hear())["type"] == "response.completed"
    if is_late:
        limit = await connection.hear()
        assert limit["status"] == 400
        assert limit["error"]["code"] == "websocket_connection_limit_reached"
    closed = await connection.hear()
    assert closed == {"type": "websocket.close", "code": 1001 if is_late else 1012}
    await hang_up(connection, serving)


async def test_a_response_without_a_last_event_leaves_no_items(monkeypatch):
    connection, serving = await open_(monkeypatch)
    connection.may_end.clear()
    await connection.hear()
    await connection.say("{}")
    await connection.hear()
    turns = connection.scopes[0]["extensions"][TURNS_EXTENSION]
    turns.keep_asked([{"role": "user"}])
    last, connection.last = connection.last, b""
    connection.may_end.set()
    for _ in range(100):
        await asyncio.sleep(0)
    connection.last = last
    await connection.say("{}")
    await connection.hear()
    assert (await connection.hear())["response"]["id"] == "resp_1"
    assert turns.find("resp_1") is None
    await hang_up(connection, serving)
