"""Django's ASGI handler; for the API, without middleware, and without the thread that Django starts
per request for signals and closing.

That thread costs 2.1 ms of CPU per completion. `_APIHandler` can go when Django closes async
responses without a thread and its middleware is natively async; `create_request` and `Request` when
Django lets a project choose the response to a malformed request.
tests/project/server/test_library_internals.py names the internals that they rely on.
"""

import asyncio
import os
from contextlib import suppress
from http import HTTPStatus
from typing import IO, Any, cast

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.exceptions import RequestAborted
from django.core.handlers import asgi
from django.core.handlers.exception import convert_exception_to_response
from django.core.signals import request_finished
from django.http.response import HttpResponse, HttpResponseBase
from django.utils.http import parse_header_parameters

from completions.exceptions import APIError
from completions.http import error_handlers
from completions.http.bodies import WRITER_EXTENSION

_WITHOUT_MIDDLEWARE = (*error_handlers.API_PATHS, "/healthz", "/readyz", "/metrics")
_WITHOUT_LENGTH = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
"""Responses without a body, whose length could only be wrong (RFC 9110, section 8.6)."""


class Request(asgi.ASGIRequest):
    """A request whose body is UTF-8, whatever its Content-Type says: Django raises for charsets
    that decode no text, such as base64."""

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        try:
            parsed = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
        except ValueError:  # without a type, views that need a body return 415
            parsed = "", {}
        self.content_type, self.content_params = parsed


class ASGIHandler:
    """The API without middleware and, unless a view uses SQL, without a thread; pages as Django
    serves them."""

    def __init__(self) -> None:
        self._api, self._pages = _APIHandler(), _Handler()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        handler = self._api if scope["path"].startswith(_WITHOUT_MIDDLEWARE) else self._pages
        if handler is self._pages:  # middleware may change what a view sends
            scope.get("extensions", {}).pop(WRITER_EXTENSION, None)
        await handler(scope, receive, send)


class _Handler(asgi.ASGIHandler):
    request_class = Request

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request as Django does, and send request_finished even when a body is refused or
        a stream fails."""
        try:
            await super().handle(scope, receive, send)
        except Exception:
            await sync_to_async(self._finish)(None)
            raise

    def _finish(self, response: HttpResponseBase | None) -> None:
        """Send request_finished, which closes the database connection of this thread: on
        PostgreSQL, it is one of a pool."""
        if response is None:
            request_finished.send(sender=type(self))
        else:
            response.close()

    def create_request(
        self, scope: Any, body_file: IO[bytes]
    ) -> tuple[asgi.ASGIRequest, None] | tuple[None, HttpResponseBase]:
        """Return the request, or the response to a query string that is not UTF-8. A chunked body
        gets its length, without which Django and DRF treat it as empty."""
        try:
            request = self.request_class(scope, body_file)
        except UnicodeDecodeError:
            message = "The query string is not ASCII: percent-encode UTF-8 in it."
            error = APIError("invalid_request", message)
            return None, error_handlers.make_response(error, scope["path"])
        if "HTTP_TRANSFER_ENCODING" in request.META:
            request.META["CONTENT_LENGTH"] = str(body_file.seek(0, os.SEEK_END))
            body_file.seek(0)
        return request, None


class _APIHandler(_Handler):
    _view_middleware = _template_response_middleware = _exception_middleware = ()

    def load_middleware(self, is_async: bool = False) -> None:
        """Load none. Middleware protects browsers, which send cookies by themselves but no bearer
        keys. Django runs each one in a thread, which costs a request 4 ms of CPU in all."""
        run_view = self._get_response_async  # type: ignore[attr-defined]
        self._middleware_chain = convert_exception_to_response(run_view)

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        async with ThreadSensitiveContext() as context:
            response: HttpResponseBase | None = None
            try:
                response = await self._serve(scope, receive, send)
            finally:  # also after a hang-up, and when a body is refused or a stream fails
                if context in SyncToAsync.context_to_thread_executor:
                    await sync_to_async(self._finish)(response)
                elif response is not None:
                    for close in response._resource_closers:  # type: ignore[attr-defined]
                        close()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> HttpResponseBase | None:
        """Send a response and return it; None if the client hung up. The caller closes it."""
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return None
        try:
            request, refusal = self.create_request(scope, body)
            if request is not None:
                return await self._answer(request, receive, send)
            if refusal is not None:
                await self.send_response(refusal, send)
            return refusal
        finally:
            body.close()

    async def send_response(self, response: HttpResponseBase, send: Any) -> None:
        """Send a response, with its length if it is whole. Django's middleware would add that."""
        if isinstance(response, HttpResponse) and response.status_code not in _WITHOUT_LENGTH:
            response.headers.setdefault("Content-Length", str(len(response.content)))
        await super().send_response(response, send)

    async def _answer(
        self, request: asgi.ASGIRequest, receive: object, send: object
    ) -> HttpResponseBase | None:
        """Run the view and send its response; cancel both if the client hangs up."""
        response: HttpResponseBase | None = None
        answering = cast("asyncio.Task[Any]", asyncio.current_task())
        hanging_up = asyncio.create_task(self._cancel_on_hang_up(answering, receive))
        try:
            response = await self.run_get_response(request)
            await self.send_response(response, send)
        except asyncio.CancelledError:
            if not hanging_up.done():  # the server is stopping
                raise
            answering.uncancel()
        finally:
            hanging_up.cancel()
        return response

    async def _cancel_on_hang_up(self, answering: "asyncio.Task[Any]", receive: Any) -> None:
        with suppress(RequestAborted):
            await self.listen_for_disconnect(receive)
        # A hang-up may also have woken a send that waited for buffer space. Yield once so that the
        # stream runs: only a stream that has started cancels its job.
        await asyncio.sleep(0)
        answering.cancel()
