"""JSON out, whatever the client says it accepts."""

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
    """JSON that is done: DRF's Response would be made twice, itself and of what it renders."""
    return HttpResponse(orjson.dumps(data), content_type=JSONRenderer.media_type)


class IgnoreAccept(DefaultContentNegotiation):
    """Official clients ask for event streams and binary files with misleading Accept headers."""

    def select_renderer(
        self,
        request: Request,
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, first.media_type or ""
