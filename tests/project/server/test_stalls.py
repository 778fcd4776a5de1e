"""A client that takes nothing of what is written to it is disconnected; a slow one is not."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState

from project.server import http_protocol
from project.server.http_protocol import Protocol
from project.server.web_socket_protocol import WebSocketProtocol
from tests.project.server.test_web_socket_protocol import HEAD
from tests.running import until

pytestmark = pytest.mark.integration

GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
PIECE = "~" * 100_000  # what no head has
PIECES = 20
"""More than the kernel and the server hold of them."""
LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


class Streamed:
    """An application that writes pieces. It counts those that it sent, and records whether the
    client has disconnected."""

    def __init__(self) -> None:
        self.sent = 0
        self.gone = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_socket = scope["type"] == "websocket"
        await receive()
        if is_socket:
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(PIECES):
            try:
                await send(
                    {"type": "websocket.send", "text": PIECE}
                    if is_socket
                    else {"type": "http.response.body", "body": PIECE.encode(), "more_body": True}
                )
            except OSError:
                break
            self.sent += 1
        self.gone = (await receive())["type"].endswith(".disconnect")


def run(
    new_loop: Any, check: Callable[[Streamed, socket.socket, ServerState], Awaitable[None]]
) -> None:
    """Check a connection whose client has small buffers."""

    async def main() -> None:
        application, state, loop = Streamed(), ServerState(), asyncio.get_running_loop()
        config = Config(
            application, lifespan="off", log_config=None, ws=WebSocketProtocol, interface="asgi3"
        )
        config.load()
        server = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1460)
            client.connect(server.sockets[0].getsockname())
            client.settimeout(30)
            await check(application, client, state)
        await until(lambda: not state.connections)
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("head", [GET, HEAD + b"\r\n"], ids=["http", "web_socket"])
def test_a_client_that_takes_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, new_loop: Any, head: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "STALL_SECONDS", 0.5)

    async def check(application: Streamed, client: socket.socket, state: ServerState) -> None:
        client.sendall(head)
        await until(lambda: not state.connections)
        await until(lambda: application.gone)

    run(new_loop, check)


@pytest.mark.parametrize("head", [GET, HEAD + b"\r\n"], ids=["http", "web_socket"])
def test_a_slow_client_holds_the_stream_up_and_loses_nothing(head: bytes) -> None:
    async def check(application: Streamed, client: socket.socket, _state: ServerState) -> None:
        client.sendall(head)
        await until(lambda: application.sent > 0)
        before = -1
        while before != application.sent:  # until the server waits
            before = application.sent
            await asyncio.sleep(0.2)
        assert before < PIECES
        read = await asyncio.to_thread(read_pieces, client)
        assert read == PIECES * len(PIECE)

    run(uvloop.new_event_loop, check)


def read_pieces(client: socket.socket) -> int:
    """Return how many bytes of the pieces came, once all have."""
    count = 0
    while count < PIECES * len(PIECE) and (part := client.recv(4096)):
        count += part.count(PIECE[:1].encode())
    return count
