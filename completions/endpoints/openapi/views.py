"""GET /v1/openapi.json, and the page to try it."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET
from rest_framework.response import Response

from completions.endpoints.openapi.document import document
from completions.http.base import APIRequest, AsyncAPIView


class OpenAPIView(AsyncAPIView):
    """Serves the document to everyone, without a key."""

    authenticated = False

    async def get(self, request: APIRequest) -> Response:
        return Response(document())


@require_GET
def docs(request: HttpRequest) -> HttpResponse:
    """Swagger UI for the document; all its assets come from this server."""
    return render(request, "docs.html")
