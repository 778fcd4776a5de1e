"""The outermost layer of the web process: request ids, bursts, body limits, start-up and shutdown.
Django reads a whole body before a view runs, so size and time are limited here, and a large body
needs a valid key."""

import asyncio
import gc
import re
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import orjson

from completions.contract import tracing
from completions.exceptions import MESSAGES_ROOT, APIError, payload_too_large
from completions.http import access_log, page_users, web_metrics
from completions.http.authentication import authenticate
from completions.http.error_handlers import API_PATHS, is_disk_full, make_api_error
from completions.http.process import WebProcess
from completions.requests import validation
from project.server import request_spans
from project.server.web_sockets import WebSocket
from workers.watchdog import RENEWAL, Watchdog

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MULTIPART_OVERHEAD = 64 * 1024
"""Bytes of an upload in addition to its file."""
STRANGERS_BYTES = 128 * 1024
"""Maximum bytes of a body from a client without a valid key, and of a body for a page."""
BODY_SECONDS = 60.0
SLOWEST = 1024
"""Bytes per second. A body may take BODY_SECONDS plus its bytes so far divided by SLOWEST."""
_PAGES = "/admin/"
"""Paths of pages, whose users have sessions and no keys."""
UPLOAD_PAGE = "/admin/batches/new/"
"""The page that takes large bodies, from users who may send batches."""
GARBAGE = 10_000
"""Threshold of the garbage collector's youngest generation: a burst allocates more than 700."""
SILENCE = 60.0
"""Seconds after which an event loop that does not turn ends the process; `up`, or the container's
runtime, starts another. Code that keeps the interpreter to itself stops every request."""
PER_TURN = 32
"""Requests admitted per iteration of the event loop, which takes some tens of milliseconds."""
HUNG_UP = 499
"""Logged status of a request whose client hung up before the response."""


class Gateway:
    """The ASGI application around Django. `uploads`: path regex → larger body limit in bytes."""

    def __init__(
        self,
        application: Application,
        max_body_bytes: int,
        uploads: Mapping[str, int] | None = None,
    ) -> None:
        self._application = application
        self._max_body_bytes = max_body_bytes
        self._turnstile = AdmissionLimiter()
        self._uploads = [(re.compile(path), limit) for path, limit in (uploads or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(scope["state"], receive, send)
        elif scope["type"] == "http":
            await self._serve_http(self._application, scope, receive, send)
        elif scope["type"] == "websocket":
            answer = partial(self._serve_http, self._application)
            socket = WebSocket(answer, scope, receive, send)
            handshake = socket.make_handshake()
            await self._serve_http(socket.run, handshake, receive, socket.send_head)

    async def _serve_lifespan(
        self, state: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Start and close the process. The server puts `state` into the scope of each request."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                tracing.start("quire-web")
                process = state["process"] = await WebProcess.start()
                _drain_on_sigterm(process)
                _freeze_imports()
                process.spawn(validation.warm_up(process.validator))
                process.spawn(feed_watchdog())
                await send({"type": "lifespan.startup.complete"})
            else:
                await state["process"].close()
                await asyncio.to_thread(tracing.stop)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve_http(
        self, application: Application, scope: Scope, receive: Receive, send: Send
    ) -> None:
        facts = access_log.begin(_get_header(scope, b"x-request-id").decode("latin-1"))
        if (tracer := tracing.tracer) is None or not scope["path"].startswith(API_PATHS):
            await self._answer(application, scope, receive, send, facts)
            return
        with request_spans.start_span(tracer, scope, facts["request_id"]) as span:
            await self._answer(application, scope, receive, send, facts, span)

    async def _answer(
        self,
        application: Application,
        scope: Scope,
        receive: Receive,
        send: Send,
        facts: dict[str, Any],
        span: "Span | None" = None,
    ) -> None:
        started = time.monotonic()
        status = HUNG_UP
        until_start: float | None = None

        async def send_tagged(message: Message) -> None:
            nonlocal status, until_start
            if message["type"] == "http.response.start":
                status = message["status"]
                until_start = time.monotonic() - started
                if span is not None:
                    span.add_event("response started")
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", facts["request_id"].encode()),
                    (b"openai-processing-ms", b"%d" % (until_start * 1000)),
                ]
                if f"{scope['path']}/".startswith(MESSAGES_ROOT):
                    # The name that Anthropic's clients read.
                    message["headers"].append((b"request-id", facts["request_id"].encode()))
            await send(message)

        web_metrics.open_requests.inc()
        try:
            if scope["path"].startswith(API_PATHS):
                await self._turnstile.wait()
            body = _Body(scope, receive, self._find_limit(scope))  # starts the clock
            await application(scope, body.receive, send_tagged)
        except (APIError, OSError, asyncio.CancelledError) as error:
            final = _make_final_error(error)
            if status != HUNG_UP or final is None:
                raise
            await _refuse(final, scope["path"], facts["request_id"], send_tagged)
        finally:
            web_metrics.open_requests.dec()
            web_metrics.count_refusal(scope, status, facts)
            method, path, seconds = scope["method"], scope["path"], time.monotonic() - started
            web_metrics.count(method, path, status, until_start, facts.get("code"))
            access_log.write(method, path, status, seconds, facts)
            if span is not None:
                request_spans.note_answer(span, status, facts)

    def _find_limit(self, scope: Scope) -> int:
        """Return how many bytes the body of a request may have."""
        larger = self._uploads if scope["method"] == "POST" else ()
        limits = [limit for path, limit in larger if path.fullmatch(scope["path"])]
        return limits[-1] if limits else self._max_body_bytes


class AdmissionLimiter:
    """Admission control for bursts, of one event loop. asyncio runs every ready callback before it
    polls sockets again, so 1,000 simultaneous requests would stall running streams for seconds;
    PER_TURN are admitted per iteration of the loop."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = self._free = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def wait(self) -> None:
        """Return at once while there is room in this iteration, else in the order of arrival."""
        if self._free and not self._waiting:
            self._free -= 1
            self._schedule()
            return
        self._waiting.append(mine := asyncio.get_running_loop().create_future())
        self._schedule()
        await mine

    def _schedule(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._turning = False
        self._free = self._per_turn
        while self._waiting and self._free:
            if not (first := self._waiting.popleft()).done():  # done if its client hung up
                first.set_result(None)
                self._free -= 1
        if self._waiting or self._free < self._per_turn:
            self._schedule()


class _Body:
    """Passes on a request's body. `receive` raises APIError if the body is too large, too slow, or
    large and without a valid key."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self._scope = scope
        self._receive = receive
        self._limit = limit
        declared = _get_header(scope, b"content-length")
        self._expected = int(declared) if declared.isdigit() else 0
        self._read = 0
        self._began = time.monotonic()
        self._has_key = False
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()  # returns when the client hangs up
        await self._check(max(self._expected, self._read))
        late_at = self._began + BODY_SECONDS + self._read / SLOWEST
        try:
            async with asyncio.timeout(late_at - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            raise APIError("request_timeout") from error
        self._read += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        await self._check(self._read)
        return message

    async def _check(self, size: int) -> None:
        if size > STRANGERS_BYTES and not self._has_key:
            await _require_key(self._scope)
            self._has_key = True
        if size > self._limit:
            raise payload_too_large(self._limit)


async def _require_key(scope: Scope) -> None:
    """Check the API key, or the session of a page's user. Raises APIError."""
    if scope["path"].startswith(_PAGES):
        cookies = _get_header(scope, b"cookie").decode("latin-1")
        if scope["path"] != UPLOAD_PAGE or not await page_users.may_upload(cookies):
            raise payload_too_large(STRANGERS_BYTES)
        return
    try:
        names = b"authorization", b"x-api-key"
        headers = [_get_header(scope, name).decode("latin-1") for name in names]
        await authenticate(scope["state"]["process"], *headers)
    except Exception as exc:
        raise make_api_error(exc) from exc


def _make_final_error(error: APIError | OSError | asyncio.CancelledError) -> APIError | None:
    """Return the response to a request that no view answered; None for unexpected errors."""
    if isinstance(error, asyncio.CancelledError):  # the server stops; the handler ends hang-ups
        return APIError("server_shutting_down")
    if isinstance(error, APIError):
        return error
    return make_api_error(error) if is_disk_full(error) else None  # no room for the body


async def _refuse(error: APIError, path: str, request_id: str, send: Send) -> None:
    access_log.note_error(error)
    # The rest of the body is unread, so the connection cannot be reused.
    body = orjson.dumps(error.envelope(path, request_id))
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(b"content-length", b"%d" % len(body))]
    headers += [(k.lower().encode(), v.encode()) for k, v in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _freeze_imports() -> None:
    """Exclude imports from garbage collection: a full collection would delay every stream."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


async def feed_watchdog() -> None:
    watchdog = Watchdog(SILENCE)
    try:
        while True:
            watchdog.feed()
            await asyncio.sleep(RENEWAL)
    finally:
        watchdog.stop()


def _drain_on_sigterm(process: WebProcess) -> None:
    """Drain on SIGTERM, before uvicorn stops listening and later cuts open connections."""
    loop, servers_own = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(process.drain)
        if callable(servers_own):
            servers_own(number, frame)

    signal.signal(signal.SIGTERM, handle)


def _get_header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
