"""Request bodies are parsed as strict JSON objects of limited size, responses rendered as JSON."""

from collections.abc import Iterable, Mapping
from typing import IO, Any

import orjson
from django.conf import settings
from django.http import HttpResponse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from completions.contract import strict_json
from completions.exceptions import APIError, payload_too_large


def loads(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises APIError (`invalid_json`)."""
    try:
        document = strict_json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise _invalid(f"it is not UTF-8 (byte {error.start})") from error
    except strict_json.StrictJSONError as error:
        raise _invalid(str(error)) from error
    if not isinstance(document, dict):
        raise _invalid("it is not an object")
    return document


def _invalid(reason: str) -> APIError:
    return APIError("invalid_json", f"The body is not valid JSON: {reason}.")


class StrictJSONParser(BaseParser):
    """application/json, up to MAX_BODY_BYTES."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        # A chunked body declares no length, so the size is known only after reading.
        body = stream.read(settings.MAX_BODY_BYTES + 1)
        if len(body) > settings.MAX_BODY_BYTES:
            raise payload_too_large(settings.MAX_BODY_BYTES)
        return loads(body)


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
