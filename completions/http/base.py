"""The asynchronous base of every view: DRF's request, parsers and errors in one coroutine."""

import asyncio
from typing import Any

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request
from rest_framework.views import APIView

from completions.accounts.keys import Principal
from completions.exceptions import APIError
from completions.http import error_handlers
from completions.http.authentication import authenticate, permit
from completions.http.bodies import BodyWriter, find_body_writer
from completions.http.multipart import MultiPartParser
from completions.http.process import WebProcess, find_process
from completions.http.socket_turns import SocketTurns, find_turns
from completions.models import Scope
from completions.requests.fair_semaphore import NOBODY

LARGE_BODY = 256 * 1024
"""A body with more bytes waits for its turn, and is parsed in a thread."""


class APIRequest(Request):
    """A request as handlers see it. An authenticated view's request has `auth`."""

    auth: Principal
    holds_turn = False
    """True for a large body until :meth:`start_check`."""

    @property
    def process(self) -> WebProcess:
        return find_process(self._request)

    @property
    def body_writer(self) -> BodyWriter | None:
        return find_body_writer(self._request)

    @property
    def turns(self) -> SocketTurns | None:
        """Those of the WebSocket connection, if the request is an event of one."""
        return find_turns(self._request)

    @property
    def owner(self) -> int:
        """The organization whose turn this request waits for."""
        return self.auth.organization_id if self.auth is not None else NOBODY

    async def take_turn(self) -> None:
        await self.process.checks.large.acquire(self.owner)
        self.holds_turn = True

    def start_check(self) -> None:
        """Give back the turn. Call this once the costly checks are done; the view calls it at the
        latest when the request is answered."""
        if self.holds_turn:
            self.holds_turn = False
            self.process.checks.large.release(self.owner)

    def release_body(self) -> None:
        """Forget the parsed body. DRF's request is part of a reference cycle, and the garbage
        collector counts objects: a body of megabytes is few of them, so it could stay for long."""
        empty: dict[str, object] = {}
        self._data = self._full_data = empty


class AsyncAPIView(APIView):
    """Handlers are `async def`. With `authenticated` they find the caller in `request.auth`."""

    authenticated = True
    scope: Scope | None = None
    """The scope that an API key needs for this view."""
    http_method_names = ["get", "post", "put", "patch", "delete", "head"]

    async def dispatch(  # type: ignore[override]
        self, request: HttpRequest, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        """Dispatch as DRF does, with `await` for the asynchronous steps."""
        self.args, self.kwargs = args, kwargs
        self.headers = self.default_response_headers
        self.request = wrapped = APIRequest(request, parsers=self.get_parsers())
        try:
            if self.authenticated:
                wrapped.auth = await self.identify_caller(request)
            if int(request.META.get("CONTENT_LENGTH") or 0) > LARGE_BODY:
                await wrapped.take_turn()
                await wrapped.process.checks.run(wrapped.owner, _parse, wrapped)
            _refuse_nul(wrapped)
            response = await self._get_handler(wrapped)(wrapped, *args, **kwargs)
        except asyncio.CancelledError:
            request.close()  # deletes uploaded files, as the end of a response would
            raise
        except Exception as exc:  # noqa: BLE001 - every error becomes a response here
            response = self.make_refusal(exc)
            _release_frames(exc)
        finally:
            wrapped.start_check()
            wrapped.release_body()
        # Django need not log a 5xx: the access log has the status, and `api_error` logs the cause.
        response._has_been_logged = True
        return self.finalize_response(wrapped, response, *args, **kwargs)

    async def identify_caller(self, request: HttpRequest) -> Principal:
        """Return the key that the request acts as. Raises APIError."""
        headers = request.META.get("HTTP_AUTHORIZATION", ""), request.META.get("HTTP_X_API_KEY", "")
        principal = await authenticate(find_process(request), *headers)
        permit(principal, self.scope, request.META.get("REMOTE_ADDR") or "")
        return principal

    def make_refusal(self, exc: Exception) -> HttpResponseBase:
        return error_handlers.make_response(exc, self.request.path_info)

    def _get_handler(self, request: Request) -> Any:
        name = (request.method or "").lower()
        if name not in self.http_method_names:
            return self.http_method_not_allowed
        return getattr(self, name, self.http_method_not_allowed)


class MultiPartAPIView(AsyncAPIView):
    """A view whose bodies are multipart/form-data."""

    parser_classes = [MultiPartParser]
    wanted: str
    """The parts, as the answer to another media type names them."""

    def make_refusal(self, exc: Exception) -> HttpResponseBase:
        if isinstance(exc, UnsupportedMediaType):
            message = f"Send {self.wanted} as multipart/form-data."
            exc = APIError("unsupported_media_type", message)
        return super().make_refusal(exc)


def _release_frames(error: BaseException | None) -> None:
    """Forget where an error and its causes came from. A frame that keeps its own error is a
    reference cycle, and holds the whole request."""
    while error is not None and error.__traceback__ is not None:  # causes may lead in a circle
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _refuse_nul(request: Request) -> None:
    """Raise APIError for U+0000 in an id or parameter, which PostgreSQL does not take."""
    if "\x00" in request.path_info:
        raise Http404
    if "%00" in request.META.get("QUERY_STRING", ""):
        for name, value in request.query_params.items():
            if "\x00" in f"{name}{value}":
                name = name.replace("\x00", "")
                raise APIError("invalid_value", f"{name} must not contain U+0000.", name)


def _parse(request: Request) -> None:
    _ = request.data
