"""Renders JSON, whatever the Accept header says."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from django.http import HttpResponse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class JSONRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else orjson.dumps(data)


def rendered(data: Any) -> HttpResponse:
    """A response of JSON that is rendered already, which costs less than DRF's Response."""
    return HttpResponse(orjson.dumps(data), content_type=JSONRenderer.media_type)


class IgnoreAccept(DefaultContentNegotiation):
    """OpenAI's clients send misleading Accept headers for event streams and binary files."""

    def select_renderer(
        self,
        request: Request,
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, first.media_type or ""
