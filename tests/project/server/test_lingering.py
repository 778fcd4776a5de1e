"""A client reads the refusal of a request even while it is still sending it."""

import asyncio
import socket
import time

import pytest
import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState

from project.server import http_protocol
from project.server.http_protocol import Protocol
from tests.project.server.transport import Transport
from tests.running import until

HEAD = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = b"too large"


async def refusing(_scope, _receive, send):
    headers = [(b"connection", b"close"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def config_of(app):
    config = Config(app, lifespan="off", log_config=None)
    config.load()
    return config


def connect(app):
    protocol, transport = Protocol(config_of(app), ServerState(), {}), Transport()
    protocol.connection_made(transport)
    return protocol, transport


async def refused(sent=HEAD % 10_000_000):
    """A connection whose request was refused after `sent`."""
    protocol, transport = connect(refusing)
    protocol.data_received(sent)
    await until(lambda: transport.ended)
    assert transport.written.endswith(ANSWER)
    return protocol, transport


async def test_data_after_a_refusal_is_discarded():
    protocol, transport = await refused()
    assert not transport.closed
    written, held = transport.written, len(protocol.cycle.body)
    for piece in (b"x" * 5_000_000, b"x" * 5_000_000, b"GET /b HTTP/1.1\r\n\r\n", b"\x00\r\n\r\n"):
        protocol.data_received(piece)
    await asyncio.sleep(0)
    assert (transport.written, len(protocol.cycle.body)) == (written, held)
    assert not transport.closed
    protocol.connection_lost(None)


async def test_a_refusal_reads_on_where_reading_was_paused():
    protocol, transport = await refused(HEAD % 10_000_000 + b"x" * 1_000_000)
    assert transport.reading
    assert not transport.closed
    protocol.connection_lost(None)


async def test_a_refused_connection_is_closed_after_a_limit(monkeypatch):
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.05)
    protocol, transport = await refused()
    while not transport.closed:
        protocol.data_received(b"x" * 1000)
        await asyncio.sleep(0.005)


async def test_a_refused_connection_that_sends_endlessly_is_aborted(monkeypatch):
    monkeypatch.setattr(http_protocol, "MAX_DISCARDED_BYTES", 100_000)
    protocol, transport = await refused()
    protocol.data_received(b"x" * 100_000)
    assert not transport.closed
    protocol.data_received(b"x")
    assert transport.closed


async def test_a_refused_connection_has_no_keep_alive_timer():
    """uvicorn's keep-alive timer does not run."""
    protocol, _transport = await refused()
    assert protocol.timeout_keep_alive_task is None
    protocol.connection_lost(None)


@pytest.mark.parametrize(
    "sent", [HEAD % 3 + b"xxx", CHUNKED + b"0\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"]
)
async def test_a_request_that_was_read_is_refused_without_lingering(sent):
    _protocol, transport = await refused(sent)
    assert transport.closed


async def test_a_refusal_of_the_body_ends_the_request_that_reads_it():
    received = []

    async def app(_scope, receive, send):
        while not received or received[-1] != "http.disconnect":
            received.append((await receive())["type"])
        await refusing(_scope, receive, send)

    protocol, transport = connect(app)
    protocol.data_received(CHUNKED + b"1\r\nx\r\n")
    await until(lambda: received == ["http.request"])
    protocol.data_received(b"-5\r\n")
    assert transport.ended
    assert not transport.closed
    assert transport.written.startswith(b"HTTP/1.1 400")
    await until(lambda: not protocol.tasks)
    assert received[-1] == "http.disconnect"
    assert ANSWER not in transport.written
    assert not transport.closed
    protocol.connection_lost(None)


async def test_expect_continue_gets_no_100_after_a_refusal():
    may_go_on = asyncio.Event()

    async def app(_scope, receive, _send):
        await may_go_on.wait()
        await receive()

    protocol, transport = connect(app)
    expecting = CHUNKED.replace(b"Host", b"Expect: 100-continue\r\nHost")
    protocol.data_received(expecting + b"-5\r\n")
    assert transport.ended
    may_go_on.set()
    await until(lambda: not protocol.tasks)
    assert b"100 Continue" not in transport.written
    protocol.connection_lost(None)


async def test_shutdown_closes_a_refused_connection():
    protocol, transport = await refused()
    protocol.shutdown()
    assert transport.closed


async def test_shutdown_closes_a_connection_refused_in_its_body():
    async def app(_scope, receive, _send):
        await receive()

    protocol, transport = connect(app)
    protocol.data_received(CHUNKED + b"-5\r\n")
    assert not transport.closed
    protocol.shutdown()
    assert transport.closed


async def test_shutdown_closes_after_the_response_without_lingering():
    protocol, transport = connect(refusing)
    protocol.data_received(HEAD % 10_000_000)
    protocol.shutdown()
    await until(lambda: transport.closed)
    assert transport.written.endswith(ANSWER)


def send_all_and_read(port):
    """Send the whole request before reading the response."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(HEAD % 30_000_000)
        for _ in range(300):
            client.sendall(b"x" * 100_000)
            time.sleep(0.001)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    return answer


@pytest.mark.integration
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_client_that_sends_everything_first_reads_the_refusal(new_loop):
    async def main():
        state, loop = ServerState(), asyncio.get_running_loop()
        config = config_of(refusing)
        server = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for _ in range(3):
            answer = await asyncio.to_thread(send_all_and_read, port)
            assert answer.startswith(b"HTTP/1.1 413")
            assert answer.endswith(ANSWER)
        await until(lambda: not state.connections)  # as soon as the client has gone
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
