"""Requests are parsed as strict JSON objects of limited size, responses written as JSON."""

from collections.abc import Mapping
from typing import IO, Any

import orjson
from django.conf import settings
from django.http import HttpResponse
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
    ) -> dict[str, Any]:
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
