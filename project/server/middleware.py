"""Django's middleware for the admin, kept off the API's paths.

`MiddlewareMixin` sends every `process_request` and `process_response` to a thread; for the API,
which needs none of them, that would triple the cost of a request.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.contrib.auth import middleware as auth
from django.contrib.messages import middleware as messages
from django.contrib.sessions import middleware as sessions
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware import clickjacking, common, csrf, security
from whitenoise.middleware import WhiteNoiseMiddleware

API_PATHS = ("/v1/", "/healthz", "/readyz", "/metrics")


class _PassApi:
    """Mixed in before a middleware of Django: API requests go straight to the next one."""

    get_response: Callable[[HttpRequest], Any]
    async_mode: bool

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if request.path_info.startswith(API_PATHS):
            return self.get_response(request)  # type: ignore[no-any-return]
        return super().__call__(request)  # type: ignore[misc, no-any-return]


class SecurityMiddleware(_PassApi, security.SecurityMiddleware): ...


class SessionMiddleware(_PassApi, sessions.SessionMiddleware): ...


class CommonMiddleware(_PassApi, common.CommonMiddleware): ...


class AuthenticationMiddleware(_PassApi, auth.AuthenticationMiddleware): ...


class MessageMiddleware(_PassApi, messages.MessageMiddleware): ...


class XFrameOptionsMiddleware(_PassApi, clickjacking.XFrameOptionsMiddleware): ...


class CsrfViewMiddleware(_PassApi, csrf.CsrfViewMiddleware):
    async def process_view(  # type: ignore[override] # Django awaits what is a coroutine
        self, request: HttpRequest, *view: Any
    ) -> HttpResponseBase | None:
        """API keys are not cookies, so API requests need no check and no thread."""
        if request.path_info.startswith(API_PATHS):
            return None
        return await sync_to_async(super().process_view)(request, *view)


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc] # it is untyped
    """WhiteNoise is sync only; asking it just for its own paths spares the rest a thread."""

    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        static_file = self.files.get(request.path_info)
        if static_file is None:
            return self.get_response(request)
        if iscoroutinefunction(self.get_response):
            return sync_to_async(self.serve)(static_file, request)
        return self.serve(static_file, request)
