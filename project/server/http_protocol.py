"""uvicorn's HTTP protocol, hardened against clients without a key.

- A head or trailers of more than 64 KiB get 431, a head that takes 30 s gets 408; uvicorn has no
  limit.
- Trailers are dropped; uvicorn adds them to the headers, where they can forge what a proxy sets.
- The body of a request that offers another protocol (`Upgrade: h2c`, as Java's client sends it) is
  read. uvicorn drops it, or parses it as further requests, which a proxy does not expect. Only
  WebSocket is taken, and only by `GET /v1/responses`.
- A hang-up cancels the running request even if others are pipelined behind it.
- A refusal reaches a client that is still sending: the connection is half-closed and read for
  another 5 s. A reset could destroy the response in the client's buffer (RFC 9112, section 9.6).
- A client that takes nothing of a response for 10 minutes is disconnected; uvicorn waits for ever.
- HTTP/1.0 clients get neither chunks nor 100 Continue, which they do not know; uvicorn sends both.
- The error bodies are those of the API.
- An application can write parts of a stream's body itself (`_ChunkWriter`).

Each but the last can go when uvicorn does the same.
tests/project/server/test_library_internals.py names the internals that it relies on.
"""

import asyncio
import socket
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from completions.exceptions import APIError
from completions.http.bodies import WRITER_EXTENSION, BodyWriter

MAX_HEAD_BYTES = 64 * 1024
"""Limit for the head, for chunk extensions and for trailers, beyond one read of the socket."""
HEAD_SECONDS = 30.0
"""Seconds from the connection, or the first byte of a request, to the end of its head."""
MAX_PIPELINED_BYTES = 64 * 1024
"""Limit for pipelined requests, beyond one read of the socket."""
LINGER_SECONDS = 5.0
"""Seconds that a refused connection stays open while the client still sends."""
MAX_DISCARDED_BYTES = 256 * 1024 * 1024
"""Bytes to read from a refused connection: enough for an upload slightly over the limit."""
STALL_SECONDS = 600.0
"""Seconds for which a client may take nothing of what is written to it."""

_WEB_SOCKET_PATH = b"/v1/responses"
_BEFORE_CHUNKS = ("0.9", "1.0")
"""Versions of HTTP without chunks."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Otherwise a pipelined request runs in the context of the previous one, with its database
        # thread, which nothing would end.
        self.config.reset_contextvars = True
        self.parser = _Parser(self)  # type: ignore[assignment]
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        self._pipelined_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lingering = False
        self._discarded = 0
        self._shutting_down = False
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _limit_stalls(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._discard(len(data))
            return
        self._head_bytes += len(data)  # the callbacks below reset it at each new part
        super().data_received(data)
        if self._upgraded or self.is_ending():
            return
        self._limit_pipelining(len(data))
        if (self._in_head or self._in_body) and self._head_bytes > MAX_HEAD_BYTES:
            what = "head is" if self._in_head else "chunk extensions or trailers are"
            message = f"The request's {what} longer than {MAX_HEAD_BYTES} bytes. Shorten it."
            self._refuse("headers_too_large", message)
        elif self._in_head or not self._is_answering():  # a blank line starts no request
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("This is no proxy.")
        if self.parser.should_upgrade() and not self.may_upgrade():
            return  # the parser begins again
        super().on_headers_complete()
        if self.parser.should_upgrade():
            return
        self._in_head = False
        self._in_body = True
        self._head_bytes = 0
        self._stop_waiting()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise it is a trailer
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head_bytes = 0

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_body = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        cycle.transport = _ResponseTransport(self)
        if cycle.scope["http_version"] in _BEFORE_CHUNKS:
            cycle.waiting_for_100_continue = False  # RFC 9110, section 10.1.1
            app = _UnchunkedApplication(cycle, app)
        else:
            _offer_body_writer(cycle)
        super()._start_asgi_task(cycle, app)

    def may_upgrade(self) -> bool:
        """Return whether the request begins a WebSocket connection to a path that has them."""
        names = {name for name, _ in self.headers}
        return (
            (self.parser.get_method(), self.parser.get_http_version()) == (b"GET", "1.1")
            and self.url.partition(b"?")[0] == _WEB_SOCKET_PATH
            and self._should_upgrade()
            and not names & {b"content-length", b"transfer-encoding"}
            and not self._is_answering()
        )

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self._stop_waiting()
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._lingering:
            self._unset_keepalive_if_required()  # no further request is read

    def shutdown(self) -> None:
        self._shutting_down = True
        if self._lingering:
            self.transport.close()
        else:
            super().shutdown()

    def is_ending(self) -> bool:
        """Return whether the connection accepts no more responses."""
        return self._lingering or self.transport.is_closing()

    def end(self) -> None:
        """End the connection after its last response."""
        if self._in_body and self._running is self.cycle and self.cycle.response_complete:
            self._linger()
        elif not self._lingering:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse("invalid_request", f"{msg} Send HTTP/1.1 as RFC 9112 defines it.")

    def _limit_pipelining(self, size: int) -> None:
        """Read on behind pipelined requests, because only a read notices a hang-up."""
        if not self.pipeline:
            self._pipelined_bytes = 0
            return
        self._pipelined_bytes += size
        if self._pipelined_bytes > MAX_PIPELINED_BYTES:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_body_refused(self) -> bool:
        """Return whether a refusal sent now would answer the request whose body is being read."""
        return self._in_body and self._running is self.cycle and not self.cycle.response_started

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._on_head_timeout)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_head_timeout(self) -> None:
        self._timer = None
        if self._is_answering():  # the next request may wait for this one
            self._await_head()
        elif not self.is_ending():
            message = f"The request's head did not arrive within {HEAD_SECONDS:g} seconds."
            self._refuse("request_timeout", message)

    def _refuse(self, code: str, message: str) -> None:
        if self._is_answering() and not self._is_body_refused():
            self.transport.close()
            return
        error = APIError(code, message)
        body = orjson.dumps(error.envelope())
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
        self.transport.write(
            STATUS_LINE[error.status_code] + head + b"%d\r\n\r\n" % len(body) + body
        )
        if self._in_head or self._in_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Close the writing side, and discard what the client sends until it closes too."""
        if self._lingering:
            return
        if self._shutting_down or self.transport.is_closing():
            self.transport.close()
            return
        self._lingering = True
        self._stop_waiting()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        if self._is_answering():  # the refusal was its response
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write_eof()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > MAX_DISCARDED_BYTES:
            self.transport.abort()


def _limit_stalls(transport: asyncio.Transport) -> None:
    """Have the kernel end a connection whose client neither acknowledges bytes nor makes room for
    them (RFC 5482). Only Linux can. A connection that becomes a WebSocket keeps the option."""
    connection = transport.get_extra_info("socket")
    is_tcp = connection is not None and connection.family != socket.AF_UNIX
    if is_tcp and hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(STALL_SECONDS * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


class _ChunkWriter:
    """Writes parts of a body in chunks, as uvicorn's `send` does where it need not wait.

    The reader of events writes with it to a stream's connection. A stream's task wakes through six
    generators and Django's loop for each event, which costs more than everything else that the web
    tier does with it.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def can_write(self) -> bool:
        cycle = self._cycle
        return (
            cycle.response_started
            and bool(cycle.chunked_encoding)
            and not (cycle.response_complete or cycle.disconnected or cycle.flow.write_paused)
        )

    def write(self, part: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))


def _offer_body_writer(cycle: RequestResponseCycle) -> None:
    """Let the application of a request write parts of the response's body, unless a response to its
    method has none."""
    if cycle.scope["method"] != "HEAD":
        writer: BodyWriter = _ChunkWriter(cycle)
        extensions: dict[str, Any] = {WRITER_EXTENSION: writer}
        cycle.scope["extensions"] = extensions


class _UnchunkedApplication:
    """An ASGI application whose response is sent without chunks (RFC 9112, section 6.1). Without a
    Content-Length, the end of the connection ends the response."""

    def __init__(self, cycle: RequestResponseCycle, application: Any) -> None:
        self._cycle = cycle
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        has_length = False

        async def send_unchunked(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(
                    k.lower() == b"content-length" for k, _ in message.get("headers", ())
                )
                if not has_length:
                    self._cycle.chunked_encoding = False
            elif not has_length:  # uvicorn refuses more bytes than it expects
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._application(scope, receive, send_unchunked)


class _Parser:
    """httptools' parser for a server that changes to no other protocol than WebSocket. If a head
    asks for another one, httptools leaves the body to it; so the head is parsed again without
    `Upgrade`."""

    def __init__(self, connection: Protocol) -> None:
        self._connection = connection
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpRequestParser(self._connection)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                if self._connection.may_upgrade():
                    raise
                head, rest = self._make_head(), rest[upgrade.args[0] :]
                self._begin()
                self._parser.feed_data(head)
            else:
                return

    def _make_head(self) -> bytes:
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self._connection.url, version)]
        headers = self._connection.headers
        lines += [b"%s: %s" % (name, value) for name, value in headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])


class _ResponseTransport(asyncio.Transport):
    """The transport of one request: uvicorn closes it when no other response may follow."""

    def __init__(self, connection: Protocol) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.is_ending()

    def close(self) -> None:
        self._connection.end()
