"""Endless, late and malformed heads; hang-ups."""

import asyncio
import json
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from project.server import http_protocol
from project.server.http_protocol import Protocol
from tests.project.server.transport import Transport
from tests.running import until


async def application(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await scope["app_may_end"].wait()
    await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture
async def connection():
    may_end = asyncio.Event()
    may_end.set()

    async def app(scope, receive, send):
        await application({**scope, "app_may_end": may_end}, receive, send)

    config = Config(app, lifespan="off", log_config=None)
    config.load()
    protocol, transport = Protocol(config, ServerState(), {}), Transport()
    protocol.connection_made(transport)
    yield SimpleNamespace(protocol=protocol, transport=transport, may_end=may_end)
    protocol.connection_lost(None)


def refusal(transport):
    """Status and code of the one response that was written."""
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert transport.ended
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


REQUEST = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("piece", [b"x" * 1000, b"a: b\r\n" * 200])
async def test_a_head_without_end_is_refused(connection, piece):
    connection.protocol.data_received(b"GET /" if piece[:1] == b"x" else b"GET / HTTP/1.1\r\n")
    for _ in range(2 * http_protocol.MAX_HEAD_BYTES // len(piece)):
        if connection.transport.ended:
            break
        connection.protocol.data_received(piece)
    assert refusal(connection.transport) == (431, "headers_too_large")


CHUNKED = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("begun", [b"0\r\n", b"0\r\na: ", b"1;", b"1\r\nx\r\n1;"])
async def test_trailers_and_chunk_extensions_without_end_are_refused(connection, begun):
    piece = b"x" * 1000 if begun[-1:] in b" ;" else b"a: b\r\n" * 200
    connection.protocol.data_received(CHUNKED + begun)
    for _ in range(2 * http_protocol.MAX_HEAD_BYTES // len(piece)):
        if connection.transport.ended:
            break
        connection.protocol.data_received(piece)
    assert refusal(connection.transport) == (431, "headers_too_large")


async def test_a_malformed_chunk_is_refused(connection):
    connection.protocol.data_received(CHUNKED + b"-5\r\n")
    assert refusal(connection.transport) == (400, "invalid_request")


async def test_trailers_are_not_added_to_headers():
    """A proxy does not check trailers, so a client could forge the headers that it sets."""
    seen = []

    async def app(scope, receive, send):
        seen.append(await receive())
        seen.append(list(scope["headers"]))
        await application({**scope, "app_may_end": asyncio.Event()}, receive, send)

    config = Config(app, lifespan="off", log_config=None)
    config.load()
    protocol, transport = Protocol(config, ServerState(), {}), Transport()
    protocol.connection_made(transport)
    trailers = b"X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n"
    protocol.data_received(CHUNKED + b"1\r\nx\r\n0\r\n" + trailers + b"\r\n")
    await until(lambda: len(seen) > 1)
    assert seen[0]["body"] == b"x"
    assert seen[1] == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
    protocol.connection_lost(None)


async def test_bodies_and_further_requests_do_not_count_as_heads(connection):
    long = b"x" * 4 * http_protocol.MAX_HEAD_BYTES
    chunk = b"%x\r\n%b\r\n" % (len(long), long)
    for part in (CHUNKED, chunk, chunk + b"1", b"\r\nx\r\n", b"0\r\n\r\n"):
        connection.protocol.data_received(part)
    await until(lambda: b"done" in connection.transport.written)
    head = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(long)
    for part in (head, long[:1000], long[1000:]):
        connection.protocol.data_received(part)
    await until(lambda: connection.transport.written.count(b"done") == 2)
    for number in range(3, 40):
        connection.protocol.data_received(REQUEST[:9])
        connection.protocol.data_received(REQUEST[9:])
        await until(lambda n=number: connection.transport.written.count(b"done") == n)
    assert not connection.transport.closed


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"GET /a HTTP/1.1\r\nHost:"])
async def test_a_slow_head_is_refused(monkeypatch, begun):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)
    config = Config(application, lifespan="off", log_config=None)
    config.load()
    protocol, transport = Protocol(config, ServerState(), {}), Transport()
    protocol.connection_made(transport)
    if begun:
        protocol.data_received(begun)
    await until(lambda: transport.ended)
    assert refusal(transport) == (408, "request_timeout")
    protocol.connection_lost(None)


async def test_a_refusal_of_a_late_head_never_interrupts_a_response(connection, monkeypatch):
    """The first response takes longer than the limit for the second head."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.02)
    connection.may_end.clear()
    connection.protocol.data_received(REQUEST + b"GET /b")
    await until(lambda: b"200 OK" in connection.transport.written)
    await asyncio.sleep(0.1)
    assert not connection.transport.closed
    connection.may_end.set()
    await until(lambda: connection.transport.ended)
    first, second = connection.transport.written.split(b"HTTP/1.1 408 Request Timeout")
    assert first.endswith(b"0\r\n\r\n")
    assert b"request_timeout" in second


async def test_a_blank_line_does_not_keep_an_idle_connection_open(connection, monkeypatch):
    connection.protocol.data_received(REQUEST)
    await until(lambda: b"done" in connection.transport.written)
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.02)
    connection.protocol.data_received(b"\r\n")  # which ends the wait for the next request
    await until(lambda: connection.transport.closed)


async def test_malformed_http_gets_an_error_object(connection):
    connection.protocol.data_received(b"\x16\x03\x01\x02\x00\r\n\r\n")
    assert refusal(connection.transport) == (400, "invalid_request")


async def test_garbage_after_a_request_only_ends_its_connection(connection):
    connection.may_end.clear()
    connection.protocol.data_received(REQUEST + b"\x00\x01\r\n\r\n")
    assert connection.transport.closed
    assert b"400" not in connection.transport.written


@pytest.fixture
async def unanswered():
    """A connection whose first request is never answered, and the events of its requests."""
    received = []

    async def app(scope, receive, _send):
        await receive()
        received.append((scope["path"], "begun"))
        received.append((scope["path"], (await receive())["type"]))

    config = Config(app, lifespan="off", log_config=None)
    config.load()
    protocol, transport = Protocol(config, ServerState(), {}), Transport()
    protocol.connection_made(transport)
    protocol.data_received(REQUEST)
    await until(lambda: received == [("/a", "begun")])
    return SimpleNamespace(protocol=protocol, transport=transport, received=received)


async def test_a_hang_up_reaches_the_running_request_not_the_pipelined_one(unanswered):
    unanswered.protocol.data_received(REQUEST.replace(b"/a", b"/b"))
    assert unanswered.transport.reading  # otherwise the hang-up would not be noticed
    unanswered.protocol.connection_lost(None)
    await until(lambda: len(unanswered.received) > 1)
    assert unanswered.received[1:] == [("/a", "http.disconnect")]


async def test_reading_ahead_is_bounded(unanswered):
    most = http_protocol.MAX_PIPELINED_BYTES // len(REQUEST) + 1
    for _ in range(most):
        assert unanswered.transport.reading
        unanswered.protocol.data_received(REQUEST)
    assert not unanswered.transport.reading
    unanswered.protocol.connection_lost(None)
    await until(lambda: len(unanswered.received) > 1)


async def test_pipelined_requests_are_answered_in_order(connection):
    connection.may_end.clear()
    ahead = 2 * http_protocol.MAX_PIPELINED_BYTES // len(REQUEST)
    connection.protocol.data_received(REQUEST * ahead)
    connection.may_end.set()
    await until(lambda: connection.transport.written.count(b"done") == ahead)
    assert connection.transport.reading


UPGRADES = b"POST /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"


@pytest.fixture
async def echoing():
    """A connection whose application notes each request: its path, its headers and its body."""
    seen = []

    async def app(scope, receive, send):
        message, body = await receive(), b""
        while message["more_body"]:
            body, message = body + message["body"], await receive()
        seen.append((scope["path"], dict(scope["headers"]), body + message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    config = Config(app, lifespan="off", log_config=None)
    config.load()
    protocol, transport = Protocol(config, ServerState(), {}), Transport()
    protocol.connection_made(transport)
    yield SimpleNamespace(protocol=protocol, transport=transport, seen=seen)
    protocol.connection_lost(None)


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_body_is_read_whatever_protocol_the_client_offers(echoing, size):
    """Otherwise it is lost, or parsed as further requests."""
    sent = UPGRADES + b"Content-Length: %d\r\n\r\n" % len(REQUEST) + REQUEST
    sent += UPGRADES + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    sent += UPGRADES.replace(b"POST /a", b"GET /b") + b"\r\n" + REQUEST
    for begin in range(0, len(sent), size):
        echoing.protocol.data_received(sent[begin : begin + size])
        await asyncio.sleep(0)
    await until(lambda: echoing.transport.written.count(b"done") == 4)
    assert [(path, body) for path, _, body in echoing.seen] == [
        ("/a", REQUEST),
        ("/a", b"ab"),
        ("/b", b""),
        ("/a", b""),
    ]
    assert all(b"upgrade" not in headers for _, headers, _ in echoing.seen)
    assert echoing.seen[0][1][b"host"] == b"a"


@pytest.mark.parametrize("target", [b"a:80", b"/a"])
async def test_a_tunnel_is_refused(connection, target):
    connection.protocol.data_received(b"CONNECT " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert refusal(connection.transport) == (400, "invalid_request")


async def test_a_pipelined_request_has_a_context_of_its_own():
    """Otherwise it would use the other request's database thread, which nobody would end."""
    mark, seen = ContextVar("mark", default=None), []

    async def app(scope, receive, send):
        await receive()
        seen.append(mark.get())
        mark.set(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    config = Config(app, lifespan="off", log_config=None)
    config.load()
    protocol, transport = Protocol(config, ServerState(), {}), Transport()
    protocol.connection_made(transport)
    protocol.data_received(REQUEST * 3)
    await until(lambda: transport.written.count(b"done") == 3)
    assert seen == [None] * 3
    protocol.connection_lost(None)


async def old_exchange(answers, head=b""):
    """What a client of HTTP/1.0 gets from an application that sends these messages."""

    async def app(scope, receive, send):
        await receive()
        for message in answers:
            await send(message)

    config = Config(app, lifespan="off", log_config=None)
    config.load()
    protocol, transport = Protocol(config, ServerState(), {}), Transport()
    protocol.connection_made(transport)
    protocol.data_received(b"POST /a HTTP/1.0\r\n" + head + b"Content-Length: 0\r\n\r\n")
    await until(lambda: transport.ended)
    protocol.connection_lost(None)
    head, _, body = transport.written.partition(b"\r\n\r\n")
    return head.lower(), body


def messages(*pieces, headers=()):
    yield {"type": "http.response.start", "status": 200, "headers": list(headers)}
    for piece in pieces:
        yield {"type": "http.response.body", "body": piece, "more_body": True}
    yield {"type": "http.response.body"}


async def test_a_client_of_http_1_0_gets_no_chunks():
    head, body = await old_exchange(messages(b"data: 1\n\n", b"", b"data: [DONE]\n\n"))
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"data: 1\n\ndata: [DONE]\n\n"


async def test_a_declared_length_still_holds_for_a_client_of_http_1_0():
    length = [(b"content-length", b"3")]
    assert (await old_exchange(messages(b"abc", headers=length)))[1] == b"abc"
    _, body = await old_exchange(messages(b"abc", b"d", headers=length))
    assert body == b"abc"  # the error of the application ends the connection


async def test_a_client_of_http_1_0_gets_no_interim_response():
    head, _ = await old_exchange(messages(b"a"), b"Expect: 100-continue\r\n")
    assert head.startswith(b"http/1.1 200")
