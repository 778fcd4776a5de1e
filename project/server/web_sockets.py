"""WebSocket connections to /v1/responses (https://www.openresponses.org/specification).

Each event that a client sends is served as a POST with its text as the body, by the same layers:
the gateway, the key's check, the view. The events of the answer's stream go back as text frames.
Keys come in headers as for any other request, and cookies do not count, so a page of another origin
can do nothing with its user's browser.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final

import orjson

from completions.contract.error_codes import ERRORS
from completions.exceptions import APIError
from completions.http.authentication import authenticate, permit
from completions.http.error_handlers import make_api_error
from completions.http.process import WebProcess
from completions.http.socket_turns import TURNS_EXTENSION, SocketTurns
from completions.models import Scope as KeyScope
from project.server.web_socket_protocol import SHUTDOWN

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LIFETIME: Final = 60 * 60.0
"""Seconds, as with OpenAI and in Open Responses."""
_GOING_AWAY, _RESTARTING = 1001, 1012
"""Close codes (https://www.iana.org/assignments/websocket): at the limit, and when the server
stops."""
_LAST: Final = frozenset(
    {b"response.completed", b"response.incomplete", b"response.failed", b"error"}
)
"""The last events of a stream but `quire:meta`."""
_OF_CONNECTION: Final = (
    b"connection", b"upgrade", b"sec-websocket-", b"content-", b"transfer-encoding", b"expect",
    b"cookie", b"idempotency-key", b"x-request-id",
)  # fmt: skip
"""Beginnings of the names of headers that are not those of each request."""
_SHOWN: Final = (b"retry-after", b"x-should-retry")
"""Headers of a refusal that its event repeats."""


class WebSocket:
    """One connection. `serve` is the application that answers requests."""

    def __init__(self, serve: Application, scope: Scope, receive: Receive, send: Send) -> None:
        self._serve = serve
        self._receive = receive
        self._send = send
        self._scope = scope
        self._process: WebProcess = scope["state"]["process"]
        self._turns = SocketTurns(self._process.kept_turns)
        self._gone = asyncio.Event()
        self._answering: asyncio.Task[None] | None = None
        self._is_answering = False
        """False from the last event on, when the client may send the next one."""
        self._closing: asyncio.Task[None] | None = None

    def make_handshake(self) -> Scope:
        """Return the scope of the GET that asks for the connection."""
        scheme = "https" if self._scope["scheme"] == "wss" else "http"
        return {**self._scope, "type": "http", "method": "GET", "scheme": scheme, "extensions": {}}

    async def send_head(self, message: Message) -> None:
        """Send a part of the handshake's answer, which is that to a GET."""
        if message.get("status") == 101:
            message = {**message, "type": "websocket.accept"}
        else:
            message = {**message, "type": f"websocket.{message['type']}"}
        await self._send(message)

    async def run(self, handshake: Scope, _receive: Receive, send: Send) -> None:
        """Serve the connection from its handshake to its end. Raises APIError for a refusal."""
        with self._process.sockets.hold(await _check_key(handshake)):
            await send({"type": "http.response.start", "status": 101, "headers": []})
            try:
                await self._take_events()
            finally:
                await self._finish()

    async def _finish(self) -> None:
        """End what runs for a client that is gone."""
        self._gone.set()
        self._turns.forget()
        left = [task for task in (self._answering, self._closing) if task is not None]
        if self._closing is not None:
            self._closing.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _take_events(self) -> None:
        ends_at: float | None = asyncio.get_running_loop().time() + LIFETIME
        while True:
            try:
                async with asyncio.timeout_at(ends_at):
                    message = await self._receive()
            except TimeoutError:
                ends_at = None
                self._close(_GOING_AWAY, APIError("websocket_connection_limit_reached"))
                continue
            if message["type"] == "websocket.disconnect":
                return
            if message["type"] == SHUTDOWN:
                self._close(_RESTARTING)
            elif message["type"] == "websocket.receive":
                await self._take(message.get("text"))

    async def _take(self, text: str | None) -> None:
        if text is None:
            await self._refuse(APIError("invalid_request", "Send events as text frames of JSON."))
        elif self._is_answering:
            await self._refuse(APIError("response_in_progress"))
        elif self._closing is None:
            if self._answering is not None:  # it sent its last event
                await self._answering
            self._is_answering = True
            self._answering = asyncio.create_task(self._answer(text.encode()))

    async def _answer(self, body: bytes) -> None:
        headers = [
            (name, value)
            for name, value in self._scope["headers"]
            if not name.startswith(_OF_CONNECTION)
        ]
        headers += [(b"content-type", b"application/json")]
        headers += [(b"content-length", b"%d" % len(body))]
        scope = {**self.make_handshake(), "method": "POST", "headers": headers}
        scope["extensions"] = {TURNS_EXTENSION: self._turns}
        parts = [body]

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._serve(scope, receive, _Frames(self.send, self._end).send)
        except Exception as exc:  # noqa: BLE001 - the connection outlives it
            await self._refuse(make_api_error(exc))
        finally:
            if self._is_answering:  # it ended without its last event
                self._end(None)

    async def send(self, text: str) -> None:
        with suppress(OSError):  # the client is gone, as `_receive` says
            await self._send({"type": "websocket.send", "text": text})

    def _end(self, response: dict[str, Any] | None) -> None:
        self._turns.end(response)
        self._is_answering = False

    async def _refuse(self, error: APIError) -> None:
        shown = error.envelope()["error"]
        await self.send(_make_error(error.status_code, shown, error.headers))

    def _close(self, code: int, error: APIError | None = None) -> None:
        """Close the connection after the response that runs."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_later(code, error))

    async def _close_later(self, code: int, error: APIError | None) -> None:
        if self._answering is not None:
            await asyncio.wait([self._answering])
        if error is not None:
            await self._refuse(error)
        with suppress(OSError):
            await self._send({"type": "websocket.close", "code": code})


class _Frames:
    """Turns the HTTP response to an event into frames. `end` gets the response object when the
    stream ends, or None for an error."""

    def __init__(
        self,
        send: Callable[[str], Awaitable[None]],
        end: Callable[[dict[str, Any] | None], None],
    ) -> None:
        self._send = send
        self._end = end
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._rest = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
            return
        self._rest += message.get("body", b"")
        kind = {name.lower(): value for name, value in self._headers.items()}[b"content-type"]
        if kind.startswith(b"text/event-stream"):
            *events, self._rest = self._rest.split(b"\n\n")
            for event in events:
                await self._send_event(event)
        elif not message.get("more_body", False):
            headers = {
                name.lower().decode(): value.decode("latin-1")
                for name, value in self._headers.items()
                if name.lower() in _SHOWN
            }
            self._end(None)
            error = orjson.loads(self._rest)["error"]
            await self._send(_make_error(self._status, error, headers))

    async def _send_event(self, event: bytes) -> None:
        """Send an event of the stream, without the lines that are for HTTP alone."""
        lines = (line.partition(b": ") for line in event.split(b"\n"))
        fields = {name: value for name, _, value in lines}
        kind, data = fields.get(b"event"), fields.get(b"data", b"[DONE]")
        if data == b"[DONE]":
            return
        if kind in _LAST:
            body = orjson.loads(data)
            if kind == b"error":
                kind_of_error = ERRORS.get(body["code"], ERRORS["internal_error"])
                data = orjson.dumps({**body, "status": kind_of_error.status})
            self._end(body["response"] if kind not in (b"error", b"response.failed") else None)
        await self._send(data.decode())


def _make_error(status: int, error: Any, headers: Mapping[str, str]) -> str:
    shown = {**error, **({"headers": headers} if headers else {})}
    return orjson.dumps({"type": "error", "status": status, "error": shown}).decode()


async def _check_key(handshake: Scope) -> int:
    """Return the key's id. Raises APIError unless it may create responses; each event checks that
    again."""
    headers = {name: value.decode("latin-1") for name, value in handshake["headers"]}
    address, _port = handshake.get("client") or ("", 0)
    given = headers.get(b"authorization", ""), headers.get(b"x-api-key", "")
    try:
        principal = await authenticate(handshake["state"]["process"], *given)
        permit(principal, KeyScope.INFERENCE, address)
    except Exception as exc:
        raise make_api_error(exc) from exc
    return principal.key_id
