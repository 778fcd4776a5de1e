"""Django's middleware for the admin, bypassed on the API's paths.

`MiddlewareMixin` runs every synchronous hook in a thread, which costs a request 4 ms of CPU. The
overrides can go when Django's middleware and WhiteNoise are natively async.
tests/project/server/test_library_internals.py names the internals that they rely on.
"""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.contrib.auth import middleware as auth
from django.contrib.messages import middleware as messages
from django.contrib.sessions import middleware as sessions
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.middleware import clickjacking, common, csrf, security
from django.utils.deprecation import MiddlewareMixin
from whitenoise.middleware import WhiteNoiseMiddleware

API_PATHS = ("/v1/", "/healthz", "/readyz", "/metrics")


def _bypassing(middleware: type[MiddlewareMixin]) -> Any:
    """Return the middleware class without effect on API requests."""

    class Bypassing(middleware):  # type: ignore[misc, valid-type]
        def __call__(self, request: HttpRequest) -> Any:
            if request.path_info.startswith(API_PATHS):
                return self.get_response(request)
            return super().__call__(request)

    return Bypassing


SecurityMiddleware = _bypassing(security.SecurityMiddleware)
SessionMiddleware = _bypassing(sessions.SessionMiddleware)
AuthenticationMiddleware = _bypassing(auth.AuthenticationMiddleware)
MessageMiddleware = _bypassing(messages.MessageMiddleware)
XFrameOptionsMiddleware = _bypassing(clickjacking.XFrameOptionsMiddleware)


class CommonMiddleware(_bypassing(common.CommonMiddleware)):  # type: ignore[misc]
    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        """Refuse U+0000 in the admin's URLs and cookies, which PostgreSQL does not take."""
        if "\x00" in request.path_info:
            raise Http404
        if "%00" in request.META.get("QUERY_STRING", ""):
            raise BadRequest("The parameters must not contain U+0000.")
        if any("\x00" in value for value in request.COOKIES.values()):
            raise BadRequest("The cookies must not contain U+0000.")
        return super().process_request(request)  # type: ignore[no-any-return]


class CsrfViewMiddleware(_bypassing(csrf.CsrfViewMiddleware)):  # type: ignore[misc]
    async def process_view(  # Django awaits a coroutine
        self, request: HttpRequest, *view: Any
    ) -> HttpResponseBase | None:
        """Skip the check for the API: a bearer key is not sent by browsers, so it needs none."""
        if request.path_info.startswith(API_PATHS):
            return None
        check = sync_to_async(super().process_view)
        return await check(request, *view)  # type: ignore[no-any-return]


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
