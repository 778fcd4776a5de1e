"""Django's ASGI handler, for which a request to the API needs a thread only if it uses SQL, and
which has an answer to whatever a client sends."""

import asyncio
import io
import os
from contextlib import suppress
from functools import lru_cache
from typing import IO, Any, cast

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.exceptions import RequestAborted
from django.core.handlers import asgi
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import ResolverMatch, get_resolver
from django.utils.http import parse_header_parameters

from completions.errors import APIError
from completions.http import error_handlers
from project.server.middleware import API_PATHS


class Request(asgi.ASGIRequest):
    """Bodies are UTF-8. Django would take a client's word for another charset, and fail on one that
    Python knows but that is none of texts, like base64."""

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        try:
            parsed = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
        except ValueError:  # no type: refused where a body is wanted
            parsed = "", {}
        self.content_type, self.content_params = parsed


@lru_cache(maxsize=1024)
def _resolved(path: str) -> ResolverMatch:
    return get_resolver().resolve(path)


class ASGIHandler(asgi.ASGIHandler):
    """Django starts a thread per request to send its signals and to close the response.

    All that they do is tidy up the request's thread, where it has one: its database connection.
    """

    request_class = Request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not scope["path"].startswith(API_PATHS):
            await super().__call__(scope, receive, send)
            return
        async with ThreadSensitiveContext() as context:
            response = await self._serve(scope, receive, send)
            if response is None:
                return
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(response.close)()
            else:  # its close() without the signal
                for close in response._resource_closers:  # type: ignore[attr-defined]
                    close()

    async def read_body(self, receive: Any) -> IO[bytes]:
        """A body that comes whole needs no file that could move to the disk."""
        first: Any = await receive()
        if first["type"] == "http.request" and not first.get("more_body", False):
            return io.BytesIO(first.get("body", b""))

        async def all_messages() -> Any:
            nonlocal first
            message, first = first, None
            return await receive() if message is None else message

        return await super().read_body(all_messages)

    def create_request(
        self, scope: Any, body_file: IO[bytes]
    ) -> tuple[asgi.ASGIRequest, None] | tuple[None, HttpResponseBase]:
        """A body that came in chunks gets the length that nobody declared: without one, Django and
        DRF take it for empty."""
        try:
            request = self.request_class(scope, body_file)
        except UnicodeDecodeError:
            message = "The query string is not ASCII: percent-encode UTF-8 in it."
            return None, error_handlers.response(APIError("invalid_request", message))
        if "HTTP_TRANSFER_ENCODING" in request.META:
            request.META["CONTENT_LENGTH"] = str(body_file.seek(0, os.SEEK_END))
            body_file.seek(0)
        return request, None

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Patterns are tried one by one, so a path of the API is looked up once."""
        if not request.path_info.startswith(API_PATHS):
            return super().resolve_request(request)
        request.resolver_match = _resolved(request.path_info)
        return request.resolver_match

    async def _serve(self, scope: Any, receive: Any, send: Any) -> HttpResponseBase | None:
        """Answer until it is done or the client hangs up. The caller closes the response."""
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

    async def _answer(
        self, request: HttpRequest, receive: Any, send: Any
    ) -> HttpResponseBase | None:
        """Views are cancelled when the client hangs up."""
        response: HttpResponseBase | None = None
        answering = cast("asyncio.Task[Any]", asyncio.current_task())
        hanging_up = asyncio.create_task(self._cancel_when_left(answering, receive))
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

    async def _cancel_when_left(self, answering: "asyncio.Task[Any]", receive: Any) -> None:
        with suppress(RequestAborted):
            await self.listen_for_disconnect(receive)
        # The lost connection has also woken who waited for room to write a stream's head: the
        # stream must have begun, so that it ends itself and its job.
        await asyncio.sleep(0)
        answering.cancel()
