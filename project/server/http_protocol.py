"""uvicorn's HTTP protocol, hardened against clients that have not shown a key.

Each override keeps a promise of ARCHITECTURE.md ("What happens when"):

- A head or trailers of more than 64 KiB get 431, and a head that takes 30 s gets 408. httptools
  accepts heads of any length and duration.
- Trailers are dropped. uvicorn adds them to the headers, where a client could forge what a proxy
  sets.
- A hang-up cancels the running request even if the client has pipelined others. uvicorn stops
  reading behind a pipelined request, and reports the hang-up to the last request instead.
- A refusal reaches a client that is still sending: the connection is half-closed and read on for
  5 s. uvicorn closes it, and the reset that follows can destroy the response in the client's buffer
  (RFC 9112, section 9.6).
- The error bodies are those of the API.

Each can go when uvicorn does the same. tests/project/server/test_library_internals.py names
everything of uvicorn that this file relies on.
"""

import asyncio
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from completions.errors import APIError

MOST_HEAD_BYTES = 64 * 1024
"""Limit for the request line and headers, for chunk extensions and for trailers. Up to one read of
the socket more is held in memory."""
HEAD_SECONDS = 30.0
"""Seconds from the connection, or the first byte of a request, to the end of its head."""

MOST_AHEAD_BYTES = 64 * 1024
"""Limit for pipelined requests. Up to one read of the socket more is held in memory."""

LINGER_SECONDS = 5.0
"""Seconds that a refused connection stays open while the client still sends."""
MOST_THROWN_AWAY = 256 * 1024 * 1024
"""Bytes to read from a refused connection: enough for an upload slightly over the limit."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Otherwise a pipelined request runs in the context of the one before, with its database
        # thread, which nobody would end.
        self.config.reset_contextvars = True
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
        self._head_bytes += len(data)  # the callbacks below reset it at each new part
        super().data_received(data)
        if self.ends():
            return
        self._read_ahead(len(data))
        if (self._in_head or self._in_body) and self._head_bytes > MOST_HEAD_BYTES:
            what = "head is" if self._in_head else "chunk extensions or trailers are"
            message = f"The request's {what} longer than {MOST_HEAD_BYTES} bytes. Shorten it."
            self._refuse("headers_too_large", message)
        elif self._in_head or not self._answering():  # a blank line starts no request
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
        if self._in_head:  # otherwise it is a trailer
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
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._lingers:
            self._unset_keepalive_if_required()  # no further request is read

    def shutdown(self) -> None:
        self._stops = True
        if self._lingers:
            self.transport.close()
        else:
            super().shutdown()

    def ends(self) -> bool:
        """Return whether the connection accepts no more responses."""
        return self._lingers or self.transport.is_closing()

    def end(self) -> None:
        """End the connection after its last response."""
        if self._in_body and self._runs is self.cycle and self.cycle.response_complete:
            self._linger()
        elif not self._lingers:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse("invalid_request", f"{msg} Send HTTP/1.1 as RFC 9112 defines it.")

    def _read_ahead(self, size: int) -> None:
        """Read on behind pipelined requests, because only a read notices a hang-up."""
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
        """Return whether a refusal sent now would answer the request whose body is being read."""
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
        if self._answering():  # the next request may wait for this one
            self._await_head()
        elif not self.ends():
            message = f"The request's head did not arrive within {HEAD_SECONDS:g} seconds."
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
        """Close the writing side, and discard what the client sends until it closes too."""
        if self._lingers:
            return
        if self._stops or self.transport.is_closing():
            self.transport.close()
            return
        self._lingers = True
        self._stop_waiting()
        self._late = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        if self._answering():  # the refusal was its response
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write_eof()

    def _throw_away(self, size: int) -> None:
        self._thrown_away += size
        if self._thrown_away > MOST_THROWN_AWAY:
            self.transport.abort()


class _Answer(asyncio.Transport):
    """The transport of one request: uvicorn closes it when no other response may follow."""

    def __init__(self, connection: Protocol) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.ends()

    def close(self) -> None:
        self._connection.end()
