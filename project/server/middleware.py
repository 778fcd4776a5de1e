"""Django's middleware for the admin, bypassed on the API's paths.

`MiddlewareMixin` runs every synchronous hook in a thread. Any one of Django's classes costs a
request 1.7 to 2.6 ms of CPU, all of them 4 ms, and the API needs none. These classes can go when
Django's middleware and WhiteNoise are natively async.
tests/project/server/test_library_internals.py names everything that this file relies on.
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


class _BypassApi:
    """Mixed in before a middleware class: API requests skip the middleware."""

    get_response: Callable[[HttpRequest], Any]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if request.path_info.startswith(API_PATHS):
            return self.get_response(request)  # type: ignore[no-any-return]
        return super().__call__(request)  # type: ignore[misc, no-any-return]


class SecurityMiddleware(_BypassApi, security.SecurityMiddleware): ...


class SessionMiddleware(_BypassApi, sessions.SessionMiddleware): ...


class CommonMiddleware(_BypassApi, common.CommonMiddleware): ...


class AuthenticationMiddleware(_BypassApi, auth.AuthenticationMiddleware): ...


class MessageMiddleware(_BypassApi, messages.MessageMiddleware): ...


class XFrameOptionsMiddleware(_BypassApi, clickjacking.XFrameOptionsMiddleware): ...


class CsrfViewMiddleware(_BypassApi, csrf.CsrfViewMiddleware):
    async def process_view(  # type: ignore[override] # Django awaits a coroutine
        self, request: HttpRequest, *view: Any
    ) -> HttpResponseBase | None:
        """Skip the check for the API: a bearer key is not sent by browsers, so it needs none."""
        if request.path_info.startswith(API_PATHS):
            return None
        return await sync_to_async(super().process_view)(request, *view)


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc] # untyped
    """WhiteNoise, whose synchronous code runs for static files only."""

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
