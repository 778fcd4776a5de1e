"""CORS: lets pages of other origins use the API (https://fetch.spec.whatwg.org/#http-cors-protocol).

It is at the ASGI edge because the API has no Django middleware, and so that refusals of the gateway
and event streams have the headers too. Keys are sent in a header, not in cookies, so no answer
allows credentials.
"""

import re
from collections.abc import Collection
from typing import Any

import orjson

from completions.exceptions import APIError
from completions.http import access_log
from completions.http.error_handlers import API_PATHS

ANY = "*"
_METHODS = b"GET, POST, PUT, PATCH, DELETE, HEAD"
_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,4096}")
_MAX_AGE = b"600"
"""Seconds for which a browser remembers a preflight; Chrome takes at most 7,200."""
_READABLE = frozenset(
    {
        b"cache-control",
        b"content-language",
        b"content-length",
        b"content-type",
        b"expires",
        b"last-modified",
        b"pragma",
    }
)
"""Response headers that every page may read. A page may read the others that are exposed."""


class CrossOriginHeaders:
    """An ASGI application whose answers name the page's origin if it is one of `origins`."""

    def __init__(self, application: Any, origins: Collection[str]) -> None:
        self._application = application
        self._origins = frozenset(origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(API_PATHS):
            await self._application(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                message = {**message, "headers": headers + self._make_headers(scope, headers)}
            await send(message)

        await self._application(scope, receive, send_with_headers)

    def _make_headers(
        self, scope: Any, headers: list[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        origin = _get_header(scope, b"origin")
        vary = [] if ANY in self._origins else [(b"vary", b"Origin")]
        if not is_allowed(origin, self._origins):
            return vary
        names = sorted({name.lower() for name, _ in headers} - _READABLE)
        return [
            *vary,
            (b"access-control-allow-origin", b"*" if ANY in self._origins else origin),
            (b"access-control-expose-headers", b", ".join(names)),
        ]


class Preflights:
    """An ASGI application that answers preflights itself. It runs within the gateway, which gives
    them an id and a line in the log."""

    def __init__(self, application: Any, origins: Collection[str]) -> None:
        self._application = application
        self._origins = frozenset(origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method = _get_header(scope, b"access-control-request-method")
        is_preflight = scope["method"] == "OPTIONS" and method and _get_header(scope, b"origin")
        if not is_preflight or not scope["path"].startswith(API_PATHS):
            await self._application(scope, receive, send)
        elif is_allowed(_get_header(scope, b"origin"), self._origins):
            headers = [
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-allow-headers", _get_requested_headers(scope)),
                (b"access-control-max-age", _MAX_AGE),
                (b"vary", b"Access-Control-Request-Headers"),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body"})
        else:
            await _refuse(send)


def is_allowed(origin: bytes, origins: Collection[str]) -> bool:
    return bool(origin) and (ANY in origins or origin.decode("latin-1") in origins)


def _get_requested_headers(scope: Any) -> bytes:
    """Return the headers that a page wants to send: all are allowed. `*` would leave out
    Authorization."""
    names = _get_header(scope, b"access-control-request-headers")
    return names if _NAMES.fullmatch(names) else b"authorization, content-type"


async def _refuse(send: Any) -> None:
    error = APIError(
        "permission_denied",
        "Pages of this origin may not use the API. The operator of the service lists those that "
        "may in QUIRE_CORS_ORIGINS.",
    )
    access_log.note_error(error)
    body = orjson.dumps(error.envelope())
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": error.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _get_header(scope: Any, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
