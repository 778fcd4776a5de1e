"""uvicorn's HTTP protocol with what a server that strangers reach needs: a bounded head, in bounded
time, refusals in the API's own words that reach who is still sending, and every hang-up noticed.

httptools collects a head of any length for as long as it takes, and nobody has shown a key by then.
uvicorn adds the trailers of a chunked body to the headers of its request, as many as come: a client
would say behind a proxy's back what the proxy says in them, and fill the memory.
A client that sends requests ahead and hangs up would be missed: uvicorn stops reading until the one
that runs is answered, and then tells the last that came, which does not run.
It closes a connection on a request that is still being sent, and the network's answer to what comes
then is a reset, which many clients take for the whole answer (RFC 9112, section 9.6).
"""

import asyncio
from contextvars import Context
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from completions.errors import APIError

MOST_HEAD_BYTES = 64 * 1024
"""Of the request line and the headers, and of what stands between two pieces of a chunked body or
after its last; up to one read of the socket more is held."""
HEAD_SECONDS = 30.0
"""From the connection, or from a request's first byte, to the end of its head."""

MOST_AHEAD_BYTES = 64 * 1024
"""Of requests that wait behind the one that runs; up to one read of the socket more is held."""

LINGER_SECONDS = 5.0
"""From the refusal of a request that is still being sent to the end of its connection."""
MOST_THROWN_AWAY = 256 * 1024 * 1024
"""Bytes that are read meanwhile; a file somewhat too large is less."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        self._ahead = 0
        self._runs: RequestResponseCycle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._lingers = False
        self._thrown_away = 0
        self._stops = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        if self._runs is not None and not self._runs.response_complete:
            self._runs.disconnected = True
            self._runs.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            self._throw_away(len(data))
            return
        self._head_bytes += len(data)  # what these bytes begin, or are the body of, counts anew
        super().data_received(data)
        if self.ends():
            return
        self._read_ahead(len(data))
        if (self._in_head or self._in_body) and self._head_bytes > MOST_HEAD_BYTES:
            what = "head is" if self._in_head else "chunk extensions or trailers are"
            message = f"The request's {what} longer than {MOST_HEAD_BYTES} bytes. Shorten it."
            self._refuse("headers_too_large", message)
        elif self._in_head or not self._answering():  # a blank line, which begins no request
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head = False
        self._in_body = True
        self._head_bytes = 0
        self._stop_waiting()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._runs = cycle
        cycle.transport = _Answer(self)
        # The request before starts one that waited, and would pass its own context on: its database
        # thread with it, which would then be ended by nobody.
        Context().run(super()._start_asgi_task, cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._lingers:
            self._unset_keepalive_if_required()  # no other request is waited for

    def shutdown(self) -> None:
        self._stops = True
        if self._lingers:
            self.transport.close()
        else:
            super().shutdown()

    def ends(self) -> bool:
        """Whether nothing more may be written."""
        return self._lingers or self.transport.is_closing()

    def end(self) -> None:
        """After what was the last answer."""
        if self._in_body and self._runs is self.cycle and self.cycle.response_complete:
            self._linger()
        elif not self._lingers:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse("invalid_request", f"{msg} Send HTTP/1.1 as RFC 9112 has it.")

    def _read_ahead(self, size: int) -> None:
        """Only who reads on learns that the client has gone."""
        if not self.pipeline:
            self._ahead = 0
            return
        self._ahead += size
        if self._ahead > MOST_AHEAD_BYTES:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _answers_what_is_read(self) -> bool:
        """Whether a refusal of the body at hand stands neither in a response nor in another's
        place."""
        return self._in_body and self._runs is self.cycle and not self.cycle.response_started

    def _await_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self._be_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _be_late(self) -> None:
        self._late = None
        if self._answering():  # the next request may wait for that
            self._await_head()
        elif not self.ends():
            message = f"No whole request came within {HEAD_SECONDS:g} seconds."
            self._refuse("request_timeout", message)

    def _refuse(self, code: str, message: str) -> None:
        if self._answering() and not self._answers_what_is_read():
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
        """Ends what is written, and lets the client send until it has seen that."""
        if self._lingers:
            return
        if self._stops or self.transport.is_closing():
            self.transport.close()
            return
        self._lingers = True
        self._stop_waiting()
        self._late = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        if self._answering():  # what runs has been answered in its place
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write_eof()

    def _throw_away(self, size: int) -> None:
        self._thrown_away += size
        if self._thrown_away > MOST_THROWN_AWAY:
            self.transport.abort()


class _Answer(asyncio.Transport):
    """What uvicorn writes a request's answer to, and closes when no other may follow."""

    def __init__(self, connection: Protocol) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.ends()

    def close(self) -> None:
        self._connection.end()
