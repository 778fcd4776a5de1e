"""Headers and query parameters that modify a request. RFC 7240 defines the header Prefer, and
draft-ietf-httpapi-idempotency-key-header the header Idempotency-Key."""

import hashlib
import json
import re
from dataclasses import dataclass

from rest_framework.request import Request

from completions.exceptions import APIError, invalid_parameter
from completions.jobs.new_job import IdempotencyKey

IDEMPOTENCY_HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 255
"""Characters of an idempotency key."""
META_HEADER = "x-include-meta"
_WAIT = re.compile(r"wait=\"?([0-9]{1,6})\"?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The preferences that Quire supports. Others are ignored (RFC 7240)."""

    respond_async: bool = False
    wait: float = 0.0
    """Seconds to wait before answering 202."""
    meta: bool = False
    """Whether the response reports how the request was run."""

    @classmethod
    def from_request(cls, request: Request) -> "Preferences":
        parts = [part.strip() for part in request.META.get("HTTP_PREFER", "").split(",")]
        waits = [match for part in parts if (match := _WAIT.match(part))]
        return cls(
            respond_async=any(part.lower() == "respond-async" for part in parts),
            wait=float(waits[0][1]) if waits else 0.0,
            meta=wants_meta(request),
        )


def read_idempotency_key(
    request: Request, route: str, content: bytes | None = None
) -> IdempotencyKey | None:
    """Read the request's key, with a digest of what a repetition has to repeat, by default the
    body; None without one. Raises APIError."""
    key = request.META.get("HTTP_IDEMPOTENCY_KEY")  # `request.headers` would copy all headers
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        message = (
            f"{IDEMPOTENCY_HEADER} has {len(key)} characters; it must have 1-{MAX_KEY_LENGTH}."
        )
        raise APIError("invalid_value", message, IDEMPOTENCY_HEADER)
    if content is None:
        content = json.dumps(request.data, sort_keys=True).encode()  # orjson has no large integers
    return IdempotencyKey(route, key, hashlib.sha256(content).hexdigest())


def refuse_idempotency_key(request: Request) -> None:
    """Raise APIError if the header is sent to a route that does not support it."""
    if IDEMPOTENCY_HEADER in request.headers:
        message = (
            f"{IDEMPOTENCY_HEADER} is not supported on this route; send the request without it."
        )
        raise APIError("unsupported_parameter", message, IDEMPOTENCY_HEADER)


def read_flag(request: Request, name: str) -> bool:
    """Read a query parameter that is `true`, `1`, `false`, `0` or absent."""
    text = request.query_params.get(name) if request.META["QUERY_STRING"] else None
    return _parse_boolean(text, name)


def wants_meta(request: Request) -> bool:
    """Return whether the header x-include-meta is `true` or `1`."""
    return _parse_boolean(request.META.get("HTTP_X_INCLUDE_META"), META_HEADER)


def _parse_boolean(text: str | None, name: str) -> bool:
    word = "false" if text is None else text.lower()
    if word not in ("true", "1", "false", "0"):
        raise invalid_parameter(name, word, "true or false")
    return word in ("true", "1")


def read_seconds(request: Request, name: str, most: float) -> float:
    """Read a query parameter in seconds, capped at `most`; 0 when absent."""
    text = request.query_params.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text):
        raise invalid_parameter(name, text, "a number of seconds")
    return min(float(text), most)


def read_cursor(request: Request) -> int:
    """Read the sequence number after which the stream continues; -1 for the whole stream."""
    for name, text in (
        ("starting_after", request.query_params.get("starting_after")),
        ("Last-Event-ID", request.headers.get("Last-Event-ID")),
    ):
        if text is not None:
            if not re.fullmatch(r"[0-9]{1,15}", text):
                raise invalid_parameter(name, text, "a sequence number")
            return int(text)
    return -1
