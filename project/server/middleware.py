"""Middleware of the admin; the API has none (project/server/handler.py).

tests/project/server/test_library_internals.py names the internals of WhiteNoise that it relies on.
"""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponsePermanentRedirect
from django.http.response import HttpResponseBase
from django.middleware import common
from whitenoise.middleware import WhiteNoiseMiddleware


class CommonMiddleware(common.CommonMiddleware):
    def process_request(self, request: HttpRequest) -> HttpResponsePermanentRedirect | None:
        """Refuse U+0000 in the admin's URLs and cookies, which PostgreSQL does not take."""
        if "\x00" in request.path_info:
            raise Http404
        if "%00" in request.META.get("QUERY_STRING", ""):
            raise BadRequest("The parameters must not contain U+0000.")
        if any("\x00" in value for value in request.COOKIES.values()):
            raise BadRequest("The cookies must not contain U+0000.")
        return super().process_request(request)

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> Any:
        """Add the policy that Django 6 has middleware for; a view may have set a tighter one."""
        response.headers.setdefault("Content-Security-Policy", settings.CONTENT_SECURITY_POLICY)
        return super().process_response(request, response)


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc] # untyped
    """WhiteNoise, whose synchronous code runs for static files only. It can go when WhiteNoise is
    natively async."""

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
