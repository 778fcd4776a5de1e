"""GET /v1/openapi.json, and the page that shows it."""

import asyncio
import threading
from functools import lru_cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET
from drf_spectacular.generators import SchemaGenerator
from rest_framework.response import Response

from completions.http.base import APIRequest, AsyncAPIView

_making = threading.Lock()
"""Two threads cannot: the generator imports what it describes as it goes."""


class OpenAPIView(AsyncAPIView):
    """The API's description, generated once per process."""

    authenticated = False

    async def get(self, request: APIRequest) -> Response:
        return Response(await asyncio.to_thread(document))


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    with _making:
        return _made()


@lru_cache
def _made() -> dict[str, Any]:
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    found: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return found


@require_GET
def docs(request: HttpRequest) -> HttpResponse:
    """Swagger UI over it, from this server's own files."""
    return render(request, "docs.html")
