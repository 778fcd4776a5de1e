"""The upgrade of an HTTP connection, and what differs from uvicorn's WebSocket protocol."""

import asyncio
from typing import Any

import pytest
from pytest_django.fixtures import Settings
from uvicorn.config import Config
from uvicorn.server import ServerState

from project.server.http_protocol import Protocol
from project.server.web_socket_protocol import SHUTDOWN, WebSocketProtocol
from tests.project.server.transport import Transport
from tests.running import until

FIELDS = (
    b"Host: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
HEAD = b"GET /v1/responses HTTP/1.1\r\n" + FIELDS


class Upgradable(Transport):
    """A transport that can change its protocol."""

    protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Served:
    """A connection, and the messages of its application."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        config = Config(
            self._run, lifespan="off", log_config=None, ws=WebSocketProtocol, interface="asgi3"
        )
        config.load()
        self.transport, self.http = Upgradable(), Protocol(config, ServerState(), {})
        self.http.connection_made(self.transport)  # type: ignore[arg-type]

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:
        self.messages.append(scope["type"])
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 405, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        while (message := await receive())["type"] != "websocket.disconnect":
            self.messages.append(message)
            if message["type"] == "websocket.connect":
                await send({"type": "websocket.accept"})

    async def open(self) -> Any:
        self.http.data_received(HEAD + b"\r\n")
        await until(lambda: b"101 Switching Protocols" in self.transport.written)
        return self.transport.protocol


def make_frame(payload: bytes) -> bytes:
    """A masked text frame, whose mask is 0."""
    return b"\x81" + bytes([128 | len(payload)]) + bytes(4) + payload


async def test_a_message_reaches_the_application() -> None:
    served = Served()
    protocol = await served.open()
    assert b"permessage-deflate" not in served.transport.written
    protocol.data_received(make_frame(b"{}"))
    await until(lambda: {"type": "websocket.receive", "text": "{}"} in served.messages)
    assert served.http._timer is None
    protocol.connection_lost(None)


async def test_a_message_is_no_larger_than_a_body(settings: Settings) -> None:
    settings.MAX_BODY_BYTES = 10
    served = Served()
    protocol = await served.open()
    protocol.data_received(make_frame(b"x" * 11))
    assert served.transport.written.endswith(b"message too big") or (
        (1009).to_bytes(2, "big") in served.transport.written
    )
    assert served.transport.closed
    protocol.connection_lost(None)


async def test_a_shutdown_is_told_and_cuts_nothing() -> None:
    served = Served()
    protocol = await served.open()
    protocol.shutdown()
    await until(lambda: {"type": SHUTDOWN} in served.messages)
    assert not served.transport.closed
    protocol.connection_lost(None)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\n" + FIELDS,
        b"POST /v1/responses HTTP/1.1\r\nContent-Length: 0\r\n" + FIELDS,
        HEAD + b"Content-Length: 2\r\n",
        HEAD.replace(b"websocket", b"h2c", 1),
    ],
)
async def test_other_requests_stay_requests(head: bytes) -> None:
    served = Served()
    served.http.data_received(head + b"\r\n" + b"{}" * (b": 2" in head))
    await until(lambda: b"405" in served.transport.written)
    assert served.messages == ["http"]
    served.http.connection_lost(None)


async def test_an_upgrade_behind_a_running_response_is_a_request() -> None:
    served = Served()
    served.http.data_received(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n" + HEAD + b"\r\n")
    await until(lambda: served.transport.written.count(b"405") == 2)
    assert served.messages == ["http", "http"]
    await asyncio.sleep(0)
    served.http.connection_lost(None)
