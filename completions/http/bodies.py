"""Bodies: requests are parsed as strict JSON objects of limited size, and responses are written as
JSON or as a stream."""

from collections.abc import Mapping
from typing import IO, Any, Protocol

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from rest_framework.parsers import BaseParser

from completions.contract import strict_json
from completions.exceptions import APIError, payload_too_large


def loads(body: bytes) -> dict[str, object]:
    """Return the object in `body`. Raises APIError (`invalid_json`)."""
    try:
        document = strict_json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise _make_error(f"it is not UTF-8 (byte {error.start})") from error
    except strict_json.StrictJSONError as error:
        raise _make_error(str(error)) from error
    if not isinstance(document, dict):
        raise _make_error("it is not an object")
    return document


def _make_error(reason: str) -> APIError:
    return APIError("invalid_json", f"The body is not valid JSON: {reason}.")


class StrictJSONParser(BaseParser):
    """application/json, up to MAX_BODY_BYTES."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        # A chunked body declares no length, so the size is known only after reading.
        body = stream.read(settings.MAX_BODY_BYTES + 1)
        if len(body) > settings.MAX_BODY_BYTES:
            raise payload_too_large(settings.MAX_BODY_BYTES)
        return loads(body)


class JSONResponse(HttpResponse):
    """`data` as JSON, whatever the Accept header says: OpenAI's clients send misleading ones for
    event streams and binary files. None is no body."""

    def __init__(
        self, data: object = None, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        body = b"" if data is None else orjson.dumps(data)
        super().__init__(body, "application/json", status, headers=headers)
        if data is None:
            del self.headers["Content-Type"]


WRITER_EXTENSION = "quire.body"
"""The name of the ASGI extension of our server whose value is a BodyWriter."""


class BodyWriter(Protocol):
    """What writes to the body of one response at once: without the task that answers the request,
    and the layers between it and the connection. What the task has sent must have been written."""

    def can_write(self) -> bool:
        """Return whether :meth:`write` may be called now: the head was sent, the body has not
        ended, and the client reads."""
        ...

    def write(self, part: bytes) -> None: ...


def find_body_writer(request: HttpRequest) -> BodyWriter | None:
    """Return the writer of a request's response, if its server has one and the response can have
    parts."""
    scope = request.scope  # type: ignore[attr-defined] # ASGI's
    writer: BodyWriter | None = (scope.get("extensions") or {}).get(WRITER_EXTENSION)
    return writer
